"""Doors: what of the standard library leads outside, so that no fingerprint of code can hold its result.

The table was made by going through ``sys.stdlib_module_names``. Rows name things as
people import them; a class stands for all that can be done with it, ``date.today`` for
one method. Not in it: what only writes, what is given an open file or a socket (the
one who opened it is refused), what answers the same on every machine, and ``hash`` and
``id``, which every class with a ``__hash__`` calls.
"""

from __future__ import annotations

import sys
from types import MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CODE = "runs or reaches code that cannot be seen from here"
FILES = "reads files, whose content no fingerprint of code can hold; put what it reads into the key"
CLOCK = "reads the clock"
CHANCE = "draws random numbers"
WORLD = "asks the machine it runs on, so its result differs between machines"
NETWORK = "asks other machines, whose answer no fingerprint of code can hold"

#: Why, the module, and names in it.
DOORS: tuple[tuple[str, str, str], ...] = (
    (CODE, "builtins", "eval exec __import__ input breakpoint"),
    (CODE, "code", "interact InteractiveConsole InteractiveInterpreter"),
    (CODE, "ctypes", "CDLL PyDLL OleDLL WinDLL LibraryLoader cdll pydll pythonapi string_at wstring_at"),
    (CODE, "gc", "get_objects get_referrers get_referents get_count get_stats"),
    (CODE, "imp", "load_module load_source load_compiled load_dynamic load_package find_module reload"),
    (CODE, "importlib", "import_module reload __import__"),
    (CODE, "importlib.util", "find_spec module_from_spec spec_from_file_location spec_from_loader"),
    (CODE, "inspect", "currentframe stack trace getouterframes getinnerframes getmodule"),
    (CODE, "marshal", "load loads"),
    (CODE, "pdb", "Pdb run runcall runeval"),
    (CODE, "pickle", "load loads Unpickler"),
    (CODE, "pkgutil", "find_loader get_importer get_loader iter_importers iter_modules resolve_name walk_packages"),
    (CODE, "pydoc", "locate importfile safeimport"),
    (CODE, "runpy", "run_module run_path"),
    (CODE, "sys", "_getframe _current_frames _current_exceptions _getframemodulename getrefcount"),
    (CODE, "zipimport", "zipimporter"),
    (FILES, "bz2", "open BZ2File"),
    (FILES, "codecs", "open"),
    (FILES, "configparser", "ConfigParser RawConfigParser SafeConfigParser"),
    (FILES, "dbm", "open whichdb"),
    (FILES, "dbm.dumb", "open"),
    (FILES, "dbm.gnu", "open"),
    (FILES, "dbm.ndbm", "open"),
    (FILES, "filecmp", "cmp cmpfiles dircmp"),
    (FILES, "fileinput", "input FileInput hook_compressed hook_encoded"),
    (FILES, "gettext", "find translation install GNUTranslations gettext ngettext dgettext dngettext"),
    (FILES, "glob", "glob iglob"),
    (FILES, "gzip", "open GzipFile"),
    (FILES, "imghdr", "what"),
    (FILES, "importlib.metadata", "distribution distributions entry_points files metadata packages_distributions"),
    (FILES, "importlib.metadata", "requires version Distribution PathDistribution"),
    (FILES, "importlib.resources", "files path contents is_resource"),
    (FILES, "importlib.resources", "open_binary open_text read_binary read_text"),
    (FILES, "inspect", "getsource getsourcelines getsourcefile getfile getabsfile findsource getcomments getblock"),
    (FILES, "io", "open open_code FileIO"),
    (FILES, "linecache", "getline getlines updatecache"),
    (FILES, "logging.config", "fileConfig"),
    (FILES, "lzma", "open LZMAFile"),
    (FILES, "mailbox", "mbox Maildir MH Babyl MMDF"),
    (FILES, "mailcap", "getcaps"),
    (
        FILES,
        "mimetypes",
        "guess_type guess_extension guess_all_extensions guess_file_type init read_mime_types MimeTypes",
    ),
    (FILES, "mmap", "mmap"),
    (FILES, "netrc", "netrc"),
    (FILES, "os", "open fdopen read pread readv preadv listdir scandir walk fwalk stat lstat fstat statvfs fstatvfs"),
    (FILES, "os", "access readlink getcwd getcwdb getxattr listxattr pathconf fpathconf ttyname isatty listdrives"),
    (FILES, "os.path", "exists lexists isfile isdir islink ismount isjunction isdevdrive getsize getmtime getatime"),
    (FILES, "os.path", "getctime samefile sameopenfile abspath realpath relpath expanduser expandvars"),
    (FILES, "pathlib", "Path PosixPath WindowsPath"),
    (FILES, "pkgutil", "get_data"),
    (FILES, "pyclbr", "readmodule readmodule_ex"),
    (FILES, "shelve", "open Shelf BsdDbShelf DbfilenameShelf"),
    (FILES, "shutil", "which disk_usage"),
    (FILES, "sndhdr", "what whathdr"),
    (FILES, "sqlite3", "connect Connection"),
    (FILES, "tarfile", "open TarFile is_tarfile"),
    (FILES, "tempfile", "gettempdir gettempdirb mkstemp mkdtemp mktemp NamedTemporaryFile TemporaryFile"),
    (FILES, "tempfile", "TemporaryDirectory SpooledTemporaryFile"),
    (FILES, "tokenize", "open"),
    (FILES, "wave", "open"),
    (FILES, "xml.dom.minidom", "parse"),
    (FILES, "xml.dom.pulldom", "parse"),
    (FILES, "xml.etree.ElementTree", "parse iterparse ElementTree.parse"),
    (FILES, "xml.sax", "parse"),
    (FILES, "zipfile", "ZipFile PyZipFile Path is_zipfile"),
    (FILES, "zoneinfo", "ZoneInfo available_timezones"),
    (CLOCK, "cProfile", "Profile run runctx"),
    (CLOCK, "datetime", "datetime.now datetime.utcnow datetime.today date.today"),
    (CLOCK, "email.utils", "formatdate localtime make_msgid"),
    (CLOCK, "os", "times"),
    (CLOCK, "profile", "Profile run runctx"),
    (CLOCK, "sched", "scheduler"),
    (CLOCK, "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns"),
    (CLOCK, "time", "thread_time thread_time_ns clock_gettime clock_gettime_ns clock_getres get_clock_info"),
    (CLOCK, "time", "localtime gmtime ctime asctime strftime"),
    (CLOCK, "timeit", "default_timer timeit repeat Timer"),
    (CHANCE, "crypt", "mksalt"),
    (CHANCE, "os", "urandom getrandom"),
    (CHANCE, "random", "SystemRandom"),
    (CHANCE, "secrets", "choice randbelow randbits token_bytes token_hex token_urlsafe SystemRandom"),
    (CHANCE, "ssl", "RAND_bytes RAND_pseudo_bytes"),
    (CHANCE, "statistics", "NormalDist.samples"),
    (CHANCE, "uuid", "uuid1 uuid4 uuid6 uuid7 uuid8"),
    (WORLD, "concurrent.futures", "ProcessPoolExecutor"),
    (WORLD, "ctypes.util", "find_library"),
    (WORLD, "curses", "initscr wrapper setupterm"),
    (WORLD, "datetime", "datetime.fromtimestamp datetime.astimezone date.fromtimestamp"),
    (WORLD, "fcntl", "fcntl ioctl"),
    (WORLD, "getpass", "getpass getuser"),
    (WORLD, "grp", "getgrall getgrgid getgrnam"),
    (WORLD, "locale", "getdefaultlocale getencoding getlocale getpreferredencoding localeconv nl_langinfo setlocale"),
    (WORLD, "locale", "currency format_string strcoll strxfrm"),
    (
        WORLD,
        "multiprocessing",
        "cpu_count current_process parent_process active_children Process Pool Manager Pipe Queue",
    ),
    (WORLD, "multiprocessing.shared_memory", "SharedMemory ShareableList"),
    (WORLD, "nis", "cat match maps get_default_domain"),
    (WORLD, "os", "cpu_count process_cpu_count sched_getaffinity sched_getparam sched_getscheduler getpriority"),
    (WORLD, "os", "confstr sysconf uname getloadavg get_exec_path getenvb get_terminal_size ctermid umask"),
    (
        WORLD,
        "os",
        "getpid getppid getpgid getpgrp getsid getuid geteuid getgid getegid getgroups getgrouplist getlogin",
    ),
    (
        WORLD,
        "os",
        "getresuid getresgid fork forkpty system popen posix_spawn posix_spawnp spawnl spawnle spawnlp spawnlpe",
    ),
    (WORLD, "os", "spawnv spawnve spawnvp spawnvpe startfile wait waitpid wait3 wait4 waitid"),
    (WORLD, "platform", "architecture freedesktop_os_release libc_ver mac_ver machine node platform processor release"),
    (WORLD, "platform", "system uname version win32_edition win32_is_iot win32_ver"),
    (WORLD, "pty", "fork openpty spawn"),
    (WORLD, "pwd", "getpwall getpwnam getpwuid"),
    (WORLD, "readline", "get_history_item get_line_buffer"),
    (WORLD, "resource", "getpagesize getrlimit getrusage prlimit"),
    (WORLD, "select", "select poll epoll kqueue devpoll"),
    (WORLD, "selectors", "DefaultSelector SelectSelector PollSelector EpollSelector KqueueSelector DevpollSelector"),
    (WORLD, "shutil", "get_terminal_size"),
    (WORLD, "signal", "getitimer getsignal pthread_sigmask sigpending sigtimedwait sigwait sigwaitinfo"),
    (WORLD, "site", "getsitepackages getuserbase getusersitepackages"),
    (WORLD, "spwd", "getspall getspnam"),
    (WORLD, "ssl", "create_default_context get_default_verify_paths SSLContext"),
    (WORLD, "subprocess", "Popen run call check_call check_output getoutput getstatusoutput"),
    (WORLD, "sys", "getallocatedblocks getwindowsversion"),
    (
        WORLD,
        "sysconfig",
        "get_config_h_filename get_config_var get_config_vars get_default_scheme get_makefile_filename",
    ),
    (WORLD, "sysconfig", "get_path get_paths get_platform"),
    (WORLD, "termios", "tcgetattr tcgetwinsize"),
    (WORLD, "threading", "active_count current_thread enumerate get_ident get_native_id main_thread"),
    (WORLD, "tkinter", "Tk Tcl"),
    (WORLD, "tracemalloc", "get_object_traceback get_traced_memory get_tracemalloc_memory take_snapshot"),
    (WORLD, "uuid", "getnode"),
    (WORLD, "webbrowser", "get open open_new open_new_tab"),
    (WORLD, "winreg", "ConnectRegistry OpenKey OpenKeyEx QueryValue QueryValueEx EnumKey EnumValue"),
    (NETWORK, "asyncio", "open_connection open_unix_connection start_server start_unix_server"),
    (NETWORK, "asyncio", "create_subprocess_exec create_subprocess_shell"),
    (NETWORK, "ftplib", "FTP FTP_TLS"),
    (NETWORK, "http.client", "HTTPConnection HTTPSConnection"),
    (NETWORK, "http.server", "HTTPServer ThreadingHTTPServer"),
    (NETWORK, "imaplib", "IMAP4 IMAP4_SSL IMAP4_stream"),
    (NETWORK, "multiprocessing.connection", "Client Listener"),
    (NETWORK, "nntplib", "NNTP NNTP_SSL"),
    (NETWORK, "poplib", "POP3 POP3_SSL"),
    (NETWORK, "smtplib", "SMTP SMTP_SSL LMTP"),
    (NETWORK, "socket", "socket create_connection create_server fromfd socketpair getaddrinfo getfqdn gethostbyaddr"),
    (
        NETWORK,
        "socket",
        "gethostbyname gethostbyname_ex gethostname getnameinfo getservbyname getservbyport if_nameindex",
    ),
    (NETWORK, "socketserver", "TCPServer UDPServer UnixStreamServer UnixDatagramServer"),
    (NETWORK, "ssl", "get_server_certificate"),
    (NETWORK, "telnetlib", "Telnet"),
    (NETWORK, "urllib.request", "urlopen urlretrieve build_opener install_opener URLopener FancyURLopener"),
    (NETWORK, "urllib.robotparser", "RobotFileParser"),
    (NETWORK, "xmlrpc.client", "ServerProxy Server"),
)

#: By the object itself, which is kept so that its id stays its own: many are defined in another module.
_BY_OBJECT: dict[int, tuple[object, str]] = {}
_BY_NAME: dict[tuple[str, str], str] = {}
#: Modules of the table that were not loaded when they were last looked for.
_waiting: dict[str, list[tuple[str, str]]] = {}
for _reason, _module, _names in DOORS:
    for _name in _names.split():
        _BY_NAME[_module, _name] = _reason
        _waiting.setdefault(_module, []).append((_name, _reason))

#: Methods that are doors, and their classes, which are none.
METHODS = frozenset(name.partition(".")[2] for _, name in _BY_NAME if "." in name)
CLASSES = frozenset((module, name.partition(".")[0]) for module, name in _BY_NAME if "." in name)

MODULES = frozenset(_waiting)


def reason_against(value: Any, module: str = "", name: str = "") -> str:
    """Why ``value``, which the standard library defines as ``name`` in ``module``, is refused; empty when it is not."""
    reason = _BY_NAME.get((module, name), "")
    if reason:
        return reason
    if len(sys.modules) != _looked_at:
        _look_for_modules()
    known = _BY_OBJECT.get(id(value))
    return known[1] if known is not None and known[0] is value else ""


def reason_against_name(module: str, path: tuple[str, ...]) -> str:
    """The same of what is not loaded yet, by the names that code reads of the module."""
    return _BY_NAME.get((module, ".".join(path[:1])), "") or _BY_NAME.get((module, ".".join(path[:2])), "")


def reason_against_member(value: Any, name: str) -> str:
    """Why ``value.name`` is refused, ``value`` being a class or an instance; empty when it is not.

    The class that defines it decides: somebody's own ``date`` has the standard library's ``today``.
    """
    if name in METHODS:
        kind = value if isinstance(value, type) else type(value)
        for base in kind.__mro__:
            if name in vars(base):
                return _BY_NAME.get((base.__module__, f"{base.__qualname__}.{name}"), "")
    return ""


#: How many modules were loaded when those of the table were last looked for.
_looked_at = 0


def _look_for_modules() -> None:
    global _looked_at
    _looked_at = len(sys.modules)
    for name in [name for name in _waiting if name in sys.modules]:
        namespace = vars(sys.modules[name])
        later = []
        for attribute, reason in _waiting[name]:
            value = namespace.get(attribute)
            if value is None and "__getattr__" in namespace:
                later.append((attribute, reason))  # made when it is asked for
            elif callable(value):
                value = value.__func__ if isinstance(value, MethodType) else value
                _BY_OBJECT[id(value)] = value, reason
        if later:
            _waiting[name] = later
        else:
            _waiting.pop(name, None)
