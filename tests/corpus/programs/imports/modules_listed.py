# Which modules are loaded that are neither torch's nor the standard library's before torch is there.
# allowed: walks frames
import sys

names = {name.partition(".")[0] for name in sys.modules}
print(sorted(name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")))
