from palaestra.api import Run as Run
from palaestra.api import compare as compare
from palaestra.api import evaluate as evaluate
from palaestra.api import load_recipe as load_recipe
from palaestra.api import train as train

__version__: str
