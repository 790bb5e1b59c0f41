"""All that a stage's command imports: loaded once, where the other processes are forked from."""

import stages.reward.run
import stages.reward.trainer
import stages.rl.run
import stages.rl.session
import stages.sft.run
import stages.sft.trainer
from aacli import app

__all__ = ["app", "stages"]
