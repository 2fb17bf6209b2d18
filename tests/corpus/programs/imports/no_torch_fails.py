# A program without torch that fails.
# status: 1
import json

json.loads("{")
