"""The statistics of a comparison between runs: pure functions of arrays, without files and without names."""
