"""An actor-critic on a cart that has to stay in the middle: the policy is called while it collects, too."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

import torch
from torch import nn
from torch.distributions import Categorical

from proving import loop
from proving.case import Cause
from proving.edits import evaluating, mistake, returning, setting, visible

_VALUES = "value Gradient.value.* Gradient.*value*"
_POLICY = "policy Gradient.policy.* Gradient.*policy*"

FAULTS = loop.FAULTS | {
    "advantage is not detached": mistake(
        lambda model: setattr(model, "detached", False), f"{_VALUES} {_POLICY}", Cause.OPERATOR, Cause.FACTOR
    ),
    "values have no loss": visible(
        lambda model: setattr(model, "weight", 0.0),
        f"{_VALUES} Parameter.value.*",
        Cause.NO_GRADIENT,
        Cause.NOT_UPDATED,
        Cause.FACTOR,
        lag=1,
    ),
    "sign of the policy's loss": mistake(
        lambda model: setattr(model, "sign", -1.0), _POLICY, Cause.SIGN, Cause.FACTOR
    ),
    "logits scaled twice": mistake(returning("policy", lambda x: 2 * x), "policy", Cause.FACTOR),
    "trunk in other activation": mistake(setting("trunk.1", forward=torch.relu), "trunk.1", Cause.OPERATOR),
    "trunk in eval mode": mistake(evaluating("drop"), "drop", Cause.MODE),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.drop = nn.Dropout(0.05)
        self.policy, self.value = nn.Linear(32, 2), nn.Linear(32, 1)
        self.detached, self.weight, self.sign = True, 0.5, 1.0

    def forward(self, state):
        hidden = self.drop(self.trunk(state))
        return self.policy(hidden), self.value(hidden)


@torch.no_grad()
def episode(model, generator):
    """Return states, and with each its action and the return after it."""
    state = torch.randn(8, 4, generator=generator) * 0.1
    states, actions, rewards = [], [], []
    for _ in range(6):
        action = torch.multinomial(model(state)[0].softmax(-1), 1, generator=generator)[:, 0]
        states, actions = [*states, state], [*actions, action]
        push = torch.stack([state[:, 1], 2.0 * action - 1, state[:, 3], -state[:, 2]], 1)
        state = state + 0.1 * push
        rewards.append(1 - state[:, 0] ** 2)
    returns, after = [], torch.zeros(8)
    for reward in reversed(rewards):
        after = reward + 0.95 * after
        returns.insert(0, after)
    return torch.cat(states), torch.stack([torch.cat(actions).float(), torch.cat(returns)], 1)


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net()
    generator = torch.Generator().manual_seed(1000 * job.run.seed)

    def loss(output, target):
        logits, value = output
        advantage = target[:, 1] - value[:, 0]
        policy = Categorical(logits=logits)
        weight = advantage.detach() if model.detached else advantage
        gain = (policy.log_prob(target[:, 0]) * weight).mean()
        return -model.sign * gain + model.weight * advantage.pow(2).mean() - 0.01 * policy.entropy().mean()

    loop.fit(job, model, lambda _: episode(model, generator), loss)
