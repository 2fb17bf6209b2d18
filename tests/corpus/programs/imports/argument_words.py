# Arguments with spaces, dashes and other characters, and a path.
# arguments: --steps 5 -q -- "two words" 'é' --out=x -m
import sys

import corpus_state

print(sys.argv[1:])
corpus_state.report()
