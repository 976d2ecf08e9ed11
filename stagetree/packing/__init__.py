"""Several models trained as one: lanes of a stack, so that a device with room to spare trains them in one step's time.

"Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter Tuning" (Liu et al. 2020) concatenates
models into one graph. Here `torch.func.vmap` runs the user's own `loss` once over all of them.
"""

from stagetree.packing.constants import own_constants as own_constants
from stagetree.packing.constants import share_constants as share_constants
from stagetree.packing.lane import Lane as Lane
from stagetree.packing.pack import Pack as Pack
from stagetree.packing.packability import NotPackable as NotPackable
from stagetree.packing.profiling import Profile as Profile
