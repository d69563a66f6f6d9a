"""The frozen model: how it is loaded, checked, adapted and run over packed rows."""
