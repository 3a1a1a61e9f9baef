"""Models, tasks and datasets by name: Denskit's own, those that a script adds, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from denskit.runtime.warning import first_line, warn

Entry = TypeVar("Entry")


class Registry(MutableMapping[str, Entry]):
    """Entries by name, like a dict.

    A package adds to the models by an entry point ``NAME = "package.module:ENTRY"`` of the group ``denskit.models``, to
    tasks and datasets likewise.  It is imported when a name is first looked up, so that it may import from Denskit, and
    either be imported first.  What cannot be imported, or is wrong, is left out with a warning.

    Args:
        kind: "model", "task" or "dataset".
        own: the entries of Denskit, which no package replaces.
        problem: what is wrong with an entry under a name; None where nothing is.
    """

    def __init__(self, kind: str, own: Mapping[str, Entry], problem: Callable[[str, Any], str | None]) -> None:
        self.kind, self.problem = kind, problem
        self._own, self._entries = frozenset(own), dict(own)
        self._left_out: dict[str, str] = {}
        self._complete = False

    def __getitem__(self, name: str) -> Entry:
        if name in self._entries:  # so that the modules of packages may look up Denskit's own
            return self._entries[name]
        return self._all()[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def absent(self, name: object) -> str:
        """What to tell a user whose file has a name that is not among these, and what to do."""
        reason = f"it is of a package that is not installed here, or of another version of Denskit ({', '.join(self)})"
        return f"no {self.kind} {name!r:.99} here: {self._left_out.get(str(name), reason)}"

    def _all(self) -> dict[str, Entry]:
        if not self._complete:
            self._complete = True  # before the rest: what is imported now may look up names
            for warning in list(self._add_installed()):
                warn(warning)
        return self._entries

    def _add_installed(self) -> Iterator[str]:
        """Add the entries of installed packages; what to warn of."""
        givers: dict[str, str] = {}
        try:
            found = installed().select(group=f"denskit.{self.kind}s")
        except Exception as error:  # damaged files of any package
            yield f"{self.kind}s of installed packages are left out: their entry points cannot be read ({_told(error)})"
            return
        for point in found:
            package, reason = _package_of(point), None
            if point.name in self._own:
                reason = f"Denskit has a {self.kind} of this name, so the package must choose another"
            elif point.name in givers:
                reason = f"the package {givers[point.name]} gives one of this name, too"
            else:
                entry, reason = self._load(point)
            if reason is None:
                givers[point.name] = package
                self._entries.setdefault(point.name, entry)  # a script comes first
            else:
                text = f"the {self.kind} {point.name!r} of the package {package} is left out: {reason}"
                self._left_out.setdefault(point.name, text)
                yield text

    def _load(self, point: EntryPoint) -> tuple[Any, str | None]:
        """What an entry point names, and what is wrong with it."""
        try:
            entry = point.load()
            return entry, self.problem(point.name, entry)
        except (Exception, SystemExit) as error:  # whatever the package does: Denskit must start
            return None, f"{point.value} cannot be imported ({_told(error)})"


@cache
def installed() -> Any:
    """The entry points of all installed packages, read once: it takes some hundredths of a second."""
    return entry_points()


def settings_problem(name: str, entry: object, wanted: str, kind: type, config: type) -> str | None:
    """What is wrong with an entry of the class ``kind``, ``wanted`` in words, whose settings derive from ``config`` and
    are called ``name``; None where nothing is."""
    right = isinstance(entry, kind)
    found = entry.config if right else entry  # type: ignore[attr-defined]
    if right and isinstance(found, type) and issubclass(found, config):
        fields = found.model_fields  # type: ignore[attr-defined]
        found = fields["name"].default if "name" in fields else found
    return None if right and found == name else f"wanted {wanted}, Config with the name {name!r}, found {found!r:.199}"


def _package_of(point: EntryPoint) -> str:
    """Name and version of the distribution; where it is without them, the module."""
    try:
        name = point.dist and point.dist.name
        return f"{name} {point.dist.version}" if name else point.module  # type: ignore[union-attr]
    except Exception:  # damaged metadata
        return point.value


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
