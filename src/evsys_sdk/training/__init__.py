"""Room 5: the loop the SDK owns: batches in, optimiser steps, checkpoints, resume, observers, watchdogs."""
