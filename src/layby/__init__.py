"""layby runs Python tasks that hold no slot while they wait.

This module is the front door: every public name is imported from here, none is defined here.
"""

__version__ = "0.1.0.dev0"
