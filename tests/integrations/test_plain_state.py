"""What `torch.load` would not take back is refused, with its place; all that it takes is not."""

import collections
import io

import pytest

torch = pytest.importorskip("torch")

from diskreplay import InvalidInputError  # noqa: E402
from diskreplay.integrations.plain_state import check_plain  # noqa: E402


def nested(depth, within=None):
    for _ in range(depth):
        within = [within]
    return within


def with_attribute(value, made):
    made.note = value
    return made


def in_itself(kind):
    inner = []
    inner.append(kind([inner]))
    return inner[0]


REFUSED = {
    "a tensor's attribute": (
        lambda: [with_attribute(object(), torch.zeros(2))], r"extras\[0\]\.note: .*found builtins.o"
    ),
    "a parameter's attribute": (
        lambda: with_attribute(print, torch.nn.Parameter(torch.zeros(2))), r"extras\.note: "
    ),
    "an attribute of a dict": (
        lambda: with_attribute(print, collections.OrderedDict()), r"extras\.note: "
    ),
    "an int": (lambda: {"seen": 1 << 2100}, r"extras\['seen'\]: an int of 2101 bits.*hex"),
    "a negative int": (lambda: -(1 << 2039), "extras: an int of 2040 bits"),
    "a key": (lambda: {1 << 9999: 0}, r"extras: the key .*: an int of 10000 bits"),
    "deep": (lambda: nested(2000), "nested more than 100 deep, or within itself; make it flatter"),
    "a list in itself": (lambda: in_itself(list), "within itself"),
    "a tuple in itself": (lambda: in_itself(tuple), "within itself"),
    "a tensor in itself": (
        lambda: (lambda tensor: with_attribute([tensor], tensor))(torch.zeros(1)), "within itself"
    ),
    "no values": (lambda: [torch.zeros(2, device="meta")], r"extras\[0\]: .*device meta"),
    "a class of its own": (lambda: type("Mine", (dict,), {})(), "found .*Mine"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_loaded_is_named(name):
    make, words = REFUSED[name]
    with pytest.raises(InvalidInputError, match=words):
        check_plain("extras", make())


@pytest.mark.filterwarnings("ignore:.*(TypedStorage|quantized|quantization|nested|sparse)")
@pytest.mark.parametrize(
    "make",
    [
        lambda: (1 << 2039) - 1,
        lambda: 1 - (1 << 2039),
        lambda: nested(90),
        lambda: with_attribute({"a": (1,)}, torch.zeros(2)),
        lambda: with_attribute([1.5], torch.nn.Parameter(torch.zeros(2))),
        lambda: with_attribute(3, collections.OrderedDict(a=1)),
        lambda: {None: b"\xff", 1.5: 2j, (1, 2): {3}, torch.float32: torch.Size([2]), "\ud800": ""},
        lambda: collections.Counter("aab"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: torch.ones(1).expand(10**6),
    ],
)
def test_what_is_taken_can_be_loaded(make):
    value, file = make(), io.BytesIO()
    check_plain("extras", value)
    torch.save(value, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert type(found) is type(value)
    if isinstance(value, torch.Tensor):
        assert vars(found).get("note") == vars(value).get("note")
        assert torch.equal(found.detach().to_dense(), value.detach().to_dense())
    else:
        assert found == value


def test_what_many_share_is_looked_at_once():
    value = []
    for _ in range(60):  # two of each, so that a walk would never end
        value = [value, value]
    check_plain("extras", value)
