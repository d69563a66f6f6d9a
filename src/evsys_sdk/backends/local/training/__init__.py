"""Passes over data whose gradients add up, and optimiser steps."""
