"""From a conclusion to production: the gate that weights must pass, and the deployers that ship them."""
