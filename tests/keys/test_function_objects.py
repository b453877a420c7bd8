"""Classes, instances and objects of libraries that a function reads: what is in them changes its fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Fingerprint = Callable[..., str]

CLASS = """
    class Base:
        def base(self): return {base}
    class Model({bases}):
        width = {width}
        def forward(self, x): return x {op} self.base()
        @property
        def depth(self): return {depth}
        @staticmethod
        def make(): return {make}
        @classmethod
        def build(cls): return {build}
    model = Model()
    def f(x): return model.forward(x)
"""


def klass(**changes: object) -> str:
    values = {"base": 1, "bases": "Base", "width": 2, "op": "+", "depth": 3, "make": 4, "build": 5}
    return CLASS.format(**{**values, **changes})


CHANGES: dict[str, tuple[str, str]] = {
    # Classes and instances.
    "a method": (klass(op="+"), klass(op="-")),
    "a base's method": (klass(base=1), klass(base=2)),
    "another base": (klass(bases="Base"), klass(bases="Base, dict")),
    "a class attribute": (klass(width=2), klass(width=3)),
    "a property": (klass(depth=3), klass(depth=4)),
    "a static method": (klass(make=4), klass(make=5)),
    "a class method": (klass(build=5), klass(build=6)),
    "a metaclass": (
        "class M(type):\n  def __call__(cls): return 1\nclass C(metaclass=M): pass\ndef f(x): return C()",
        "class M(type):\n  def __call__(cls): return 2\nclass C(metaclass=M): pass\ndef f(x): return C()",
    ),
    "the order of bases": (
        "class A:\n  def g(s): return 1\nclass B:\n  def g(s): return 2\nclass C(A, B): pass\ndef f(x): return C().g()",
        "class A:\n  def g(s): return 1\nclass B:\n  def g(s): return 2\nclass C(B, A): pass\ndef f(x): return C().g()",
    ),
    "an instance's state": (
        "class C:\n  def __init__(s, k): s.k = k\nc = C(1)\ndef f(x): return c.k",
        "class C:\n  def __init__(s, k): s.k = k\nc = C(2)\ndef f(x): return c.k",
    ),
    "a slot": (
        "class C:\n  __slots__ = ('k',)\nc = C()\nc.k = 1\ndef f(x): return c.k",
        "class C:\n  __slots__ = ('k',)\nc = C()\nc.k = 2\ndef f(x): return c.k",
    ),
    "an unset slot": (
        "class C:\n  __slots__ = ('k',)\nc = C()\nc.k = 1\ndef f(x): return c.k",
        "class C:\n  __slots__ = ('k',)\nc = C()\ndef f(x): return c.k",
    ),
    "what a list subclass holds": (
        "class L(list):\n  def __iter__(s): return iter(())\nc = L([1])\ndef f(x): return c[0]",
        "class L(list):\n  def __iter__(s): return iter(())\nc = L([2])\ndef f(x): return c[0]",
    ),
    "what a dict subclass holds": (
        "class D(dict): pass\nc = D(a=1)\ndef f(x): return c['a']",
        "class D(dict): pass\nc = D(a=2)\ndef f(x): return c['a']",
    ),
    "a default factory": (
        "from collections import defaultdict\nc = defaultdict(int)\ndef f(x): return c[x]",
        "from collections import defaultdict\nc = defaultdict(str)\ndef f(x): return c[x]",
    ),
    "an ordered dict's order": (
        "from collections import OrderedDict\nc = OrderedDict(a=1, b=1)\ndef f(x): return list(c)",
        "from collections import OrderedDict\nc = OrderedDict(a=1, b=1)\nc.move_to_end('a')\ndef f(x): return list(c)",
    ),
    "an enum's value": (
        "import enum\nclass E(enum.Enum):\n  A = 1\n  B = 2\ndef f(x): return E.A.value",
        "import enum\nclass E(enum.Enum):\n  A = 3\n  B = 2\ndef f(x): return E.A.value",
    ),
    "an enum member": (
        "import enum\nclass E(enum.IntEnum):\n  A = 1\n  B = 2\nM = E.A\ndef f(x): return M",
        "import enum\nclass E(enum.IntEnum):\n  A = 1\n  B = 2\nM = E.B\ndef f(x): return M",
    ),
    "a dataclass default": (
        "import dataclasses as d\n@d.dataclass\nclass C:\n  k: int = 1\ndef f(x): return C().k",
        "import dataclasses as d\n@d.dataclass\nclass C:\n  k: int = 2\ndef f(x): return C().k",
    ),
    "a named tuple's default": (
        "import typing as t\nclass C(t.NamedTuple):\n  k: int = 1\ndef f(x): return C().k",
        "import typing as t\nclass C(t.NamedTuple):\n  k: int = 2\ndef f(x): return C().k",
    ),
    "what is registered as a subclass": (
        "import abc\nclass A(abc.ABC): pass\nA.register(int)\ndef f(x): return isinstance(x, A)",
        "import abc\nclass A(abc.ABC): pass\nA.register(str)\ndef f(x): return isinstance(x, A)",
    ),
    "a callable instance": (
        "class C:\n  def __call__(self, x): return x + 1\nf = C()",
        "class C:\n  def __call__(self, x): return x + 2\nf = C()",
    ),
    "a descriptor": (
        "class D:\n  def __get__(s, o, t): return 1\nclass C:\n  k = D()\nc = C()\ndef f(x): return c.k",
        "class D:\n  def __get__(s, o, t): return 2\nclass C:\n  k = D()\nc = C()\ndef f(x): return c.k",
    ),
    # Objects of the standard library.
    "a regular expression's flags": (
        "import re\nR = re.compile('a')\ndef f(x): return R.match(x)",
        "import re\nR = re.compile('a', re.I)\ndef f(x): return R.match(x)",
    ),
    "an item getter": (
        "import operator\nG = operator.itemgetter(1)\ndef f(x): return G(x)",
        "import operator\nG = operator.itemgetter(2)\ndef f(x): return G(x)",
    ),
    "a bound built-in": ("J = 'a'.join\ndef f(x): return J(x)", "J = 'b'.join\ndef f(x): return J(x)"),
    "another function of a library": (
        "import math\ndef f(x): return math.sin(x)",
        "import math\ndef f(x): return math.cos(x)",
    ),
    "a library's function under the same name": (
        "from math import sin as g\ndef f(x): return g(x)",
        "from math import cos as g\ndef f(x): return g(x)",
    ),
    "a simple namespace": (
        "from types import SimpleNamespace as N\nc = N(k=1)\ndef f(x): return c.k",
        "from types import SimpleNamespace as N\nc = N(k=2)\ndef f(x): return c.k",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_the_fingerprint(tmp_path: Path, fingerprint_in: Fingerprint, name: str) -> None:
    before, after = CHANGES[name]
    one = fingerprint_in(tmp_path / "one", before)
    assert one != fingerprint_in(tmp_path / "other", after)
    assert one == fingerprint_in(tmp_path / "a" / "deeper" / "place", before)


#: Programs with one place in them that is filled in two ways: 1 and 2, or as said.
PLACES: list[tuple[str, ...]] = [
    ("class C:\n  @property\n  def __class__(self): return int\nc = C()\nc.k = @@\ndef f(x): return c.k",),
    (
        "import types\nclass C:\n  def m(self): return self.k\n"
        "  def __getattribute__(self, n): return object.__getattribute__(self, n + n)\n"
        "c = C()\nc.k, c.kk = 0, @@\nf = types.MethodType(C.m, c)",
    ),
    ("def f(x):\n  global K\n  import types\n  K = types.SimpleNamespace(a=@@)\n  return K.a",),
    ("K=@@\nclass A:\n  xs=[K for _ in range(2)]\n  def g(self): return K\ndef f(x): return A().g()",),
    ("K=@@\ndef f(x): return (y:=K)+x",),
    ("K=@@\ndef f(x):\n  match x:\n    case 1: return K\n    case _: return 0",),
    ("import types\nNS=types.SimpleNamespace(K=@@)\ndef f(x):\n  match x:\n    case NS.K: return 1\n  return 0",),
    ("class M(type):\n  K=@@\nclass C(metaclass=M): pass\ndef f(x): return C.K",),
    ("class C:\n  def __getattr__(self,n): return @@\nc=C()\ndef f(x): return c.foo",),
    ("class C:\n  def __init_subclass__(cls): cls.k=@@\nclass D(C): pass\ndef f(x): return D.k",),
    (
        "def deco(k):\n  def d(fn):\n    def w(*a): return fn(*a)+k\n    return w\n"
        "  return d\nclass C:\n  @deco(@@)\n  def m(self): return 1\nf=C().m",
    ),
    ("class C:\n  def m(self): return self.n()\n  n=lambda self: @@\nf=C().m",),
    ("class C:\n  class N:\n    k=@@\n  def m(self): return self.N.k\nf=C().m",),
    ("class C:\n  def m(self): return type(self).k\n  k=@@\nf=C().m",),
    ("class A:\n  def k(self): return @@\nclass C(A):\n  def m(self): return super().k()\nf=C().m",),
    ("class A:\n  def k(self): return @@\nclass C(A):\n  def m(self): return A.k(self)\nf=C().m",),
    (
        "class C:\n  def __init__(self): self.fns=[lambda x: x+@@]\n"
        "  def m(self,x): return [g(x) for g in self.fns]\nf=C().m",
    ),
    ("class C:\n  def m(self): return [self.k for _ in range(2)]\nc=C()\nc.k=@@\nf=c.m",),
    (
        "class C:\n  def m(self):\n    def inner():\n      nonlocal self\n"
        "      self=None\n    inner(); return self\nc=C()\nc.k=@@\nf=c.m",
    ),
    ("class C:\n  def m(self):\n    def inner(): return self\n    return inner().k\nc=C()\nc.k=@@\nf=c.m",),
    ("class C:\n  def m(self):\n    class D:\n      k=self.k\n    return D.k\nc=C()\nc.k=@@\nf=c.m",),
    ("class C:\n  def m(self, *, o=None):\n    del o\n    return self.k\nc=C()\nc.k=@@\nf=c.m",),
    (
        "class C:\n  def m(self):\n    try: raise ValueError\n    except ValueError as self: pass\n"
        "    return 1\n  def g(self):\n    x=self; return x.k\nc=C()\nc.k=@@\nf=c.g",
    ),
    ("class C:\n  def m(self): return f'{self}'\n  def __str__(self): return str(self.k)\nc=C()\nc.k=@@\nf=c.m",),
    ("class C:\n  def m(self): return self[0]\n  def __getitem__(self,i): return self.k\nc=C()\nc.k=@@\nf=c.m",),
    (
        "class C:\n  def m(self):\n    with self: return 1\n"
        "  def __enter__(self): return @@\n  def __exit__(self,*a): pass\nf=C().m",
    ),
    ("class C:\n  def m(self): return self()\n  def __call__(self): return @@\nf=C().m",),
    ("class C:\n  def m(self): return -self\n  def __neg__(self): return @@\nf=C().m",),
    ("class C:\n  def m(self): return self.a.b\nclass D: pass\nc=C(); c.a=D(); c.a.b=@@\nf=c.m",),
    (
        "class C:\n  def m(self): self.a.b=1; return self.a\nclass D:\n"
        "  def __setattr__(self,n,v): object.__setattr__(self,n,v+@@)\nc=C(); c.a=D()\nf=c.m",
    ),
    (
        "class C:\n  def m(self): self.a=1\n  @property\n  def a(self): return 0\n"
        "  @a.setter\n  def a(self,v): self.__dict__['z']=@@\nf=C().m",
    ),
    ("class C:\n  k=1\n  def m(self): del self.k; return self.k\nC.k=@@\nc=C(); c.k=5\nf=c.m",),
    (
        "import functools\nclass C:\n  def g(self,k): return k\n"
        "  h=functools.partialmethod(g,@@)\n  def m(self): return self.h()\nf=C().m",
    ),
    (
        "import functools\nclass C:\n  @functools.singledispatchmethod\n"
        "  def g(self,x): return @@\n  def m(self): return self.g(1)\nf=C().m",
    ),
    (
        "import functools\nclass C:\n  @functools.lru_cache\n"
        "  def g(self): return @@\n  def m(self): return self.g()\nf=C().m",
    ),
    ("import collections\nD=collections.Counter(a=@@)\ndef f(x): return D['a']",),
    ("import collections\nD=collections.ChainMap({'a':@@})\ndef f(x): return D['a']",),
    ("import collections\nD=collections.UserDict(a=@@)\ndef f(x): return D['a']",),
    ("import collections\nD=collections.deque([1],maxlen=@@)\ndef f(x): return D",),
    ("E=ValueError(@@)\ndef f(x): raise E",),
    ("import string\nT=string.Template('$a@@')\ndef f(x): return T.substitute(a=x)",),
    ("import numpy as np\nV=np.vectorize(lambda x: x+@@)\ndef f(x): return V(x)",),
    ("import numpy as np\nV=np.poly1d([1,@@])\ndef f(x): return V(x)",),
    ("import numpy as np\nV=np.@@\ndef f(x): return V(x)", "float32", "dtype('float32')"),
    ("import fractions\nV=fractions.Fraction(1,@@)\ndef f(x): return V",),
    ("import uuid\nV=uuid.UUID(int=@@)\ndef f(x): return V",),
    ("import ipaddress\nV=ipaddress.ip_address(@@)\ndef f(x): return V",),
    ("def g(x,acc=[@@]): return acc\ndef f(x): return g(x)",),
    ("def g(*,k={'a':@@}): return k\ndef f(x): return g()",),
    (
        "R={}\ndef reg(n):\n  def d(g): R[n]=g; return g\n  return d\n"
        "@reg('a')\ndef _(x): return @@\ndef f(x): return R['a'](x)",
    ),
    ("f = (lambda k: lambda x: x+k)(@@)",),
    ("f = [lambda x, k=k: x+k for k in (0,1,2)][@@]",),
    ("def mk():\n  k=1\n  def f(x): return k\n  k=@@\n  return f\nf=mk()",),
    ("def mk():\n  def f(x): return g()\n  def g(): return @@\n  return f\nf=mk()",),
    (
        "class C:\n  def __init__(self,k): self.k=k\n  def __eq__(self,o): return True\n"
        "  def __hash__(self): return 1\nS={C(@@)}\ndef f(x): return [c.k for c in S]",
    ),
    ("import enum\nclass E(enum.Enum):\n  A=1\n  def g(self): return @@\ndef f(x): return E.A.g()",),
    ("import typing\nclass T(typing.TypedDict):\n  a: @@\ndef f(x: T): return x", "int", "str"),
    ("import dataclasses as d\n@d.dataclass(order=@@)\nclass C:\n  k:int=1\ndef f(x): return C()<C()", "True", "False"),
    (
        "import dataclasses as d\n@d.dataclass\nclass C:\n"
        "  k:list=d.field(default_factory=lambda:[@@])\ndef f(x): return C().k",
    ),
    ("async def g(): return @@\nasync def f(x): return await g()",),
    ("def g():\n  yield @@\ndef f(x): yield from g()",),
    ("import functools, operator\ndef f(x): return functools.reduce(operator.@@, x)", "add", "mul"),
    ("from operator import @@ as op\ndef f(x): return op(x,x)", "add", "mul"),
    ("K=@@\ndef f(x, y=lambda: K): return y()",),
    ("K=@@\ndef f(x): return (lambda: [K for _ in x])()",),
    ("import builtins\ndef mine(x): return @@\nbuiltins.zorg=mine\ndef f(x): return zorg(x)",),
    ("L=[]\nL.append(L); L.append(@@)\ndef f(x): return L",),
    ("D={}\nD['s']=D; D['k']=@@\ndef f(x): return D",),
    ("class N:\n  pass\na=N(); b=N(); a.o=b; b.o=a; b.k=@@\ndef f(x): return a.o.k",),
    ("A=object(); B=object()\nX=(A,B)[@@]\ndef f(x): return (x is X, x is A, x is B)", "0", "1"),
    ("def f(x): return x\nf.__defaults__=(@@,)",),
    ("def f(x): return x\nf.__kwdefaults__={'x':@@}",),
    ("def g(x): return @@\ndef f(x): return f.h(x)\nf.h=g",),
    ("import re\nR=re.compile(@@)\ndef f(x): return R.match(x)", "'a'", "b'a'"),
    ("K=[@@]*3\ndef f(x): return K", "[]", "[0]"),
    ("K=[[0]@@]\ndef f(x): K[0][0]=1; return K", "]*2+[[1]", "]+[[0],[1]"),
    ("import struct\nK=struct.Struct(@@)\ndef f(x): return K.pack(x)", "'<i'", "'>i'"),
    ("import array\nK=array.array('i',[@@])\ndef f(x): return K[0]",),
    ("K=bytearray(b'@@')\ndef f(x): return K[0]",),
    ("K=range(@@)\ndef f(x): return K",),
    ("K=slice(@@)\ndef f(x): return x[K]",),
    ("import types\nK=types.MappingProxyType({'a':@@})\ndef f(x): return K['a']",),
    ("K=int.__add__ if @@==1 else int.__sub__\ndef f(x): return K(x,1)",),
    ("K=(5).__add__ if @@==1 else (6).__add__\ndef f(x): return K(x)",),
    ("K=[3].append if @@==1 else [4].append\ndef f(x): return K(x)",),
    ("class I(int): pass\nK=I(@@)\ndef f(x): return K",),
    ("class S(str):\n  def __str__(self): return 'same'\nK=S('a@@')\ndef f(x): return K+''",),
    ("class T(tuple): pass\nK=T((1,@@))\ndef f(x): return K",),
    ("class F(float): pass\nK=F(@@)\ndef f(x): return K",),
    ("class S(frozenset): pass\nK=S({@@})\ndef f(x): return K",),
    ("class D(dict):\n  def items(self): return ()\nK=D(a=@@)\ndef f(x): return K['a']",),
    ("import decimal\nK=decimal.Decimal('1.@@')\ndef f(x): return K",),
    ("import datetime\nK=datetime.timedelta(@@)\ndef f(x): return K",),
    ("class C:\n  '''doc@@'''\ndef f(x): return C.__doc__",),
    ("from functools import partial as P\nclass Q(P): pass\nK=Q(int,base=@@)\ndef f(x): return K(x)",),
    ("K=(lambda: (yield @@))\ndef f(x): return K()",),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0].replace("\n", "; ")[:60])
def test_what_stands_in_one_place_counts(tmp_path: Path, fingerprint_in: Fingerprint, place: tuple[str, ...]) -> None:
    text, one, other = place if len(place) == 3 else (place[0], "1", "2")
    found = [fingerprint_in(tmp_path / str(at), text.replace("@@", part)) for at, part in enumerate((one, other, one))]
    assert found[0] != found[1]
    assert found[0] == found[2]


METHOD = """
    K = {k}
    class Inner:
        def __init__(self, v): self.v = v
    class C:
        __slots__ = ("a", "b", "__dict__")
        factor = {factor}
        def __init__(self):
            self.a, self.b = {a}, {b}
            self.inner = Inner({inner})
        @property
        def doubled(self): return self.b * {times}
        def helper(self): return [self.inner.v + i for i in range(self.factor)]
        @staticmethod
        def stat(): return {stat}
        @classmethod
        def build(cls): return cls.factor + K
        def m(self, x):
            self.count = x
            return self.a + self.doubled + len(self.helper()) + self.stat() + self.build()
    c = C()
    c.unread = {unread}
    f = c.m
"""


@pytest.mark.parametrize("part", ["k", "factor", "a", "b", "inner", "times", "stat", "unread"])
def test_a_method_counts_with_what_it_reads_of_its_object(
    tmp_path: Path, fingerprint_in: Fingerprint, part: str
) -> None:
    values = dict.fromkeys(("k", "factor", "a", "b", "inner", "times", "stat", "unread"), 1)
    one = fingerprint_in(tmp_path / "one", METHOD.format(**values))
    other = fingerprint_in(tmp_path / "other", METHOD.format(**{**values, part: 2}))
    assert (one == other) == (part == "unread")


@pytest.mark.parametrize(
    "body",
    [
        "return helper(self)",
        "return getattr(self, x)",
        "return self",
        "return (lambda s: s.v)(self)",
        "return vars(self)[x]",
        "return locals()",
        "return super().__getattribute__(x)",
        "other = self\n            return other.v",
        "return [y for y in (self,)][0].v",
        "self, y = self, 1\n            return self.v",
        "return self.__dict__[x]",
        "return (self if x else None).v",
        "return self.__class__.k, (lambda: self)().v",
    ],
)
def test_an_object_that_a_method_hands_on_counts_whole(tmp_path: Path, fingerprint_in: Fingerprint, body: str) -> None:
    text = """
    def helper(o): return o.v
    class C:
        def __init__(self, v): self.v = v
        def m(self, x):
            {body}
    f = C({v}).m
    """
    one = fingerprint_in(tmp_path / "one", text.format(body=body, v=1))
    other = fingerprint_in(tmp_path / "other", text.format(body=body, v=2))
    assert one != other
