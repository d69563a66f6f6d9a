"""The first files of a research project and of each experiment in it, and the skills that coding agents read."""
