"""What does not fit a module or an optimizer is refused by name, before anything is given."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from diskreplay import InvalidInputError  # noqa: E402
from diskreplay.integrations.run_fit import check_fit, parameters_of  # noqa: E402


def fit(saved, here):
    """Hold a network and an optimizer against the state of others."""
    (network, optimizer), (mine, my_optimizer) = saved, here
    agent = {
        "modules": {"q": network.state_dict()}, "optimizers": {"o": optimizer.state_dict()},
        "classes": {"o": type(optimizer).__qualname__},
        "parameters": parameters_of({"o": optimizer}, {"q": network}),
        "generators": {}, "rng": {},
    }  # fmt: skip
    check_fit(Path("ckpt"), agent, {"q": mine}, {"o": my_optimizer}, {}, ())
    return agent


def made(kind=torch.optim.Adam, order=lambda network: network.parameters(), **options):
    """A network with two layers of one shape, and an optimizer that has made a step."""
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = kind(order(network), lr=1e-2, **options)

    def loss():
        optimizer.zero_grad()
        value = network(torch.ones(1, 4)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return network, optimizer


NAMES = [
    name
    for name in ("Adam", "SGD", "RMSprop", "Rprop", "Adagrad", "NAdam", "LBFGS", "Adafactor")
    if hasattr(torch.optim, name)
]


@pytest.mark.parametrize("name", NAMES)
def test_each_optimizer_takes_its_own_state(name):
    """Also those whose states have other shapes than parameters: LBFGS and Adafactor."""
    kind = getattr(torch.optim, name)
    (network, optimizer), other = made(kind), made(kind)
    agent = fit((network, optimizer), other)
    other[1].load_state_dict(agent["optimizers"]["o"])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_in_another_order_are_refused(name):
    """Those of one shape too: their moments would change places."""
    kind = getattr(torch.optim, name)
    with pytest.raises(InvalidInputError, match=r"parameter 0: \('q\.0\.weight'.*'q\.1\.bias'"):
        fit(made(kind), made(kind, lambda network: [*network.parameters()][::-1]))
    turned = [2, 1, 0, 3]
    with pytest.raises(InvalidInputError, match=r"parameter 0: \('q\.0\.weight'.*'q\.1\.weight'"):
        fit(made(kind), made(kind, lambda network: [[*network.parameters()][i] for i in turned]))


def test_parameters_of_no_module_have_a_shape_and_perhaps_a_name():
    def apart(*shapes, names=None):
        network = torch.nn.Linear(1, 1)
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        given = parameters if names is None else [*zip(names, parameters, strict=True)]
        return network, torch.optim.Adam(given)

    fit(apart(2, 3), apart(2, 3))
    with pytest.raises(InvalidInputError, match=r"parameter 0: \(None, \(2,\).*\(None, \(3,\)"):
        fit(apart(2, 3), apart(3, 2))
    if "param_names" in apart(2, names=["a"])[1].state_dict()["param_groups"][0]:
        fit(apart(2, 2, names="ab"), apart(2, 2))
        with pytest.raises(InvalidInputError, match=r"\['a', 'b'\] saved, and \['b', 'a'\] here"):
            fit(apart(2, 2, names="ab"), apart(2, 2, names="ba"))


def test_a_state_without_names_of_parameters_is_taken():
    network, optimizer = made()
    assert parameters_of({"step": torch.optim.lr_scheduler.StepLR(optimizer, 3)}, {}) == {}
    agent = fit((network, optimizer), (network, optimizer))
    del agent["parameters"]
    check_fit(Path("ckpt"), agent, {"q": network}, {"o": optimizer}, {}, ())


def simple(network):
    parameters = [each for each in network.parameters() if not isinstance(each, LAZY)]
    return network, torch.optim.Adam(parameters or [torch.nn.Parameter(torch.zeros(1))])


LAZY = torch.nn.parameter.UninitializedParameter


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.nn.LazyLinear(2), r"ckpt: modules\['q'\], weight: .*call the module once"),
        (lambda: torch.nn.Linear(4, 2, device="meta"), r"modules\['q'\], weight: .*to_empty"),
        (lambda: torch.nn.Linear(4, 2).double(), "dtype: torch.float32 saved, and torch.float64 h"),
        (lambda: torch.nn.Linear(5, 2), r"weight: \(2, 4\) saved, and \(2, 5\) here"),
        (lambda: torch.nn.Linear(4, 2, bias=False), r"bias: \(2,\) saved, and None here"),
    ],
)  # fmt: skip
def test_modules_that_differ_are_refused(make, words):
    with pytest.raises(InvalidInputError, match=words):
        fit(simple(torch.nn.Linear(4, 2)), simple(make()))


def test_an_optimizer_without_values_is_refused():
    network = torch.nn.Linear(4, 2)
    apart = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2, device="meta"))])
    with pytest.raises(InvalidInputError, match=r"optimizers\['o'\], parameter 0 of a gr.* meta"):
        fit((network, apart), (network, apart))
