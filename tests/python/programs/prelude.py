"""What a random program may call. Its source is printed in front of a program that failed."""

import contextlib
import threading
import zlib

import torch
import torch.nn.functional as F  # noqa: F401 - programs call it

import retape


class Plain:
    """Stands in for `retape` in a run without it: scopes and regions that do nothing."""

    class Policy:
        def __getattr__(self, name):
            return lambda *args, **kwargs: self

    Policy = Policy()

    def recompute(self, policy="full", name=""):
        return contextlib.nullcontext()

    def checkpoint(self, function, *args, **kwargs):
        return function(*args, **kwargs)


class Dropping:
    """Stands in for `retape` with everything dropped, whatever policies a program asks for."""

    Policy = retape.Policy
    checkpoint = staticmethod(retape.checkpoint)

    def recompute(self, policy="full", name=""):
        return retape.recompute(retape.Policy.full().anchors(False), name=name)


def coin(seed, share):
    """A policy that keeps about `share` of the values, by a hash: the same choice in every run."""
    count = 0

    def keep(info):
        nonlocal count
        count += 1
        text = f"{seed} {count} {info.op} {info.output} {info.sizes}"
        return zlib.crc32(text.encode()) % 1000 < share * 1000

    return keep


class Seen:
    """What a run leaves behind: values, losses, gradients, leaves, states of generators."""

    def __init__(self):
        self.values = {}
        self.leaves = {}
        self.generators = {}

    def leaf(self, name, shape, grad=True, low=-1.0, high=1.0):
        leaf = torch.empty(shape).uniform_(low, high).requires_grad_(grad)
        self.leaves[name] = leaf
        return leaf

    def given(self, name, tensor):
        self.leaves[name] = tensor
        return tensor

    def indices(self, name, shape, high):
        self.leaves[name] = torch.randint(high, shape)
        return self.leaves[name]

    def generator(self, name, seed):
        self.generators[name] = torch.Generator().manual_seed(seed)
        return self.generators[name]

    def value(self, name, value):
        self.values[name] = None if value is None else value.detach().as_subclass(torch.Tensor)

    def grads(self, name, grads):
        for i, grad in enumerate(grads):
            self.value(f"{name}[{i}]", grad)

    def step(self, forward):
        """The program as `retape.verify` takes it."""
        buffers = torch.nn.Module()
        for name, leaf in self.leaves.items():
            if not leaf.requires_grad:
                buffers.register_buffer(name, leaf)
        return retape.Step(
            lambda: {"losses": forward(), "seen": self.values},
            modules=[buffers],
            leaves={name: leaf for name, leaf in self.leaves.items() if leaf.requires_grad},
            generators=list(self.generators.values()),
        )

    def finish(self):
        for name, leaf in self.leaves.items():
            self.values[f"{name} afterwards"] = leaf.detach()
            self.values[f"gradient of {name}"] = leaf.grad if leaf.is_leaf else None
        for name, generator in self.generators.items():
            self.values[f"state of {name}"] = generator.get_state()
        self.values["state of the default generator"] = torch.get_rng_state()
        return self.values


def verified(program, R, **options):
    """The verdict on a program whose scopes are R's, and which has no other."""

    def make():
        seen = Seen()
        return seen.step(program(R, seen))

    def losses(output):
        return output["losses"]

    return retape.verify(make, policy=None, loss=losses, may_be_dead=["*"], **options)


def run(program, R):
    """What one run leaves behind, and the error that it ended with."""
    seen = Seen()
    error = None
    try:
        sum(program(R, seen)()).backward()
    except RuntimeError as raised:
        error = raised.with_traceback(None)
    return seen.finish(), error


def on_another_thread(function):
    errors = []

    def body():
        try:
            function()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def with_grad(values):
    return [value for value in values if value is not None and value.requires_grad]


class SavesInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        (again,) = ctx.saved_tensors
        return grad * (x + again)


class SavesOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class SavesIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        middle = torch.sigmoid(x)
        ctx.save_for_backward(x, middle, w)
        ctx.scale = 0.5
        return middle * w * ctx.scale

    @staticmethod
    def backward(ctx, grad):
        x, middle, w = ctx.saved_tensors
        dx = grad * w * ctx.scale * middle * (1 - middle) + 0 * x
        dw = grad * middle * ctx.scale
        return dx.sum_to_size(x.shape), dw.sum_to_size(w.shape)


class WritesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.sigmoid_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        order = x.argsort(-1)
        y = x.gather(-1, order)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order, y)
        return y, order

    @staticmethod
    def backward(ctx, grad, _):
        order, y = ctx.saved_tensors
        return torch.zeros_like(y).scatter(-1, order, grad)


# ---- writes that no forward op makes


def in_a_backward(write):
    """Calls it in a hook of a backward of its own."""
    with torch.enable_grad():
        h = torch.ones(1, requires_grad=True)
        h.register_hook(lambda grad: (write(), None)[1])
        h.sum().backward()


class Counting(torch.autograd.Function):
    """Its backward adds to a state."""

    @staticmethod
    def forward(ctx, x, state):
        ctx.state = state
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.state.add_(grad.detach().cos().to(ctx.state.dtype))
        return grad * 2, None


def counted_by_a_backward(state):
    with torch.enable_grad():
        Counting.apply(torch.ones(state.shape, requires_grad=True), state).sum().backward()


def moved_storage(t, number):
    """Its storage is freed and allocated again, with other values."""
    storage = t.untyped_storage()
    whole = torch.empty(0, dtype=t.dtype).set_(storage)
    values = whole.clone() * number
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    whole.copy_(values)


def list_of_losses(x, weight, count):
    """Of training steps: all that lives on from them."""
    losses = []
    with torch.enable_grad():
        for _ in range(count):
            loss = (x @ weight).sin().square().mean()
            loss.backward()
            losses.append(loss.detach())
    return torch.stack(losses)


# What a scope makes, and the ways to look at it.
MADE = {
    "zeros": lambda x, number: torch.zeros(x.shape),
    "lifted": lambda x, number: torch.tensor(number).expand(x.shape).clone(),
    "written": lambda x, number: x.detach().float().cos().mul_(number),
    "gradient": lambda x, number: gradient_of(x.detach().float(), number),
}
LOOKED_AT = {
    "itself": lambda t: t,
    "data": lambda t: t.data,
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "dlpack": lambda t: torch.from_dlpack(t),
    "set": lambda t: torch.empty(0).set_(t),
}
WRITTEN = {
    "mul_": lambda t, number: t.mul_(number),
    "data": lambda t, number: t.data.mul_(number),
    "slice": lambda t, number: t.view(-1)[::2].neg_(),
    "foreach": lambda t, number: torch._foreach_mul_([t], number),
    "numpy": lambda t, number: torch.from_numpy(t.numpy()).mul_(number),
    "storage": moved_storage,
}


def gradient_of(x, number):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x * number).sin().sum(), x)[0]
