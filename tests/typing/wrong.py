"""Wrong uses of the public names: each line is refused with the codes that stand behind it."""

import gpuledger
from gpuledger.integrations import log_run

gpuledger.record(42, nonsense=True)  # E: arg-type, call-arg
gpuledger.record(42)  # E: arg-type
gpuledger.record(steps=3)  # E: arg-type
gpuledger.record("a", "b")  # E: call-arg
gpuledger.watch(gpus="0,1")  # E: arg-type
gpuledger.watch(interval=5)  # E: arg-type
gpuledger.load(3)  # E: arg-type
gpuledger.load("a.ledger").tables  # E: attr-defined
gpuledger.diff("a", "b", words="module")  # E: call-arg
gpuledger.diff("a", "b", depth="2")  # E: arg-type
gpuledger.check("a", 3)  # E: arg-type
gpuledger.breakdown("a", at=3)  # E: arg-type
gpuledger.balance("a").total  # E: attr-defined
gpuledger.step_energy("a").step_energy_j  # E: union-attr
gpuledger.estimate(3)  # E: arg-type
gpuledger.estimate(print, level=0.9)  # E: call-arg
gpuledger.find_batch(print, out="a")  # E: call-arg
gpuledger.estimate_ranks("train.py")  # E: call-arg
gpuledger.estimate_ranks("train.py", 8, world_size="8")  # E: arg-type, arg-type
gpuledger.estimate_ranks("train.py", world_size=8, ranks="0,3")  # E: arg-type
gpuledger.find_world_size("train.py", world_size=8)  # E: call-arg
gpuledger.find_world_size("train.py").smallest + 1  # E: operator
gpuledger.scope(3)  # E: arg-type
gpuledger.fake_output(3)  # E: arg-type
gpuledger.profile  # E: attr-defined
log_run("a.ledger", print)  # E: arg-type


@gpuledger.record("train")
def train(batch: int) -> int:
    return batch


train("a")  # E: arg-type
