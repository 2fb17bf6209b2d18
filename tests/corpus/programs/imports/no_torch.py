# A program without torch.
import sys

import corpus_state

print("torch" in sys.modules, "numpy" in sys.modules, len(sys.argv))
corpus_state.report()
