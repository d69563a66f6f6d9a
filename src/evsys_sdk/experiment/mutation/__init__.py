"""Legal neighbours of a config, made from the JSON schemas of what it names.

space    which fields of a config may change, and how
propose  one field to a neighbouring value; children: some fields changed, valid as a whole, with their parent noted
"""

from .propose import Child, propose, propose_from_file
from .space import MutableField, mutation_space

__all__ = ["Child", "MutableField", "mutation_space", "propose", "propose_from_file"]
