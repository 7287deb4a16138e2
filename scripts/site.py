"""Makes the documentation site of files outside of docs, and of sources: a hook of MkDocs.

- Documents of the top folder become pages.
- Links between documents lead to pages; links to other files lead to the repository.
- The reference of C, C++, the command and graph documents is generated from headers, help texts and the schema.
"""

import json
import os
import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "https://github.com/sublet/sublet/blob/main/"
# Documents outside of docs, and the names of their pages.
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "SPECIFICATION.md": "specification.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "STYLE.md": "style.md",
    "SECURITY.md": "security-policy.md",
}
C_HEADERS = ["sublet.h", "sublet_function.h", "sublet_memory.h", "sublet_swap.h", "sublet_graph.h", "sublet_xpu.h"]
CPP_HEADERS = ["sublet.hpp", "sublet_memory.hpp", "sublet_swap.hpp", "sublet_graph.hpp"]
HEADERS = "crates/capi/include"


def on_files(files, config):
    pages = {
        "reference/c.md": lambda: headers("C", C_HEADERS),
        "reference/cpp.md": lambda: headers("C++", CPP_HEADERS),
        "reference/command.md": command,
        "reference/graph-schema.md": schema,
    }
    for path, page in DOCUMENTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for page, make in pages.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Makes the links of a page, which are those of its file in the repository, links of the site."""
    at = next((path for path, name in DOCUMENTS.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    prose = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    linked = lambda match: f"]({target(match[1], at, page.file.src_uri)})"
    prose[::2] = [re.sub(r"\]\(([^)\s]+)\)", linked, text) for text in prose[::2]]
    return "".join(prose)


def target(link, at, page):
    """A link of the repository's file `at`, as a link of the page."""
    path, mark, anchor = link.partition("#")
    if not path or ":" in path:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(at), path))
    if path.endswith((".md", ".svg")) and (path in DOCUMENTS or path.startswith("docs/")):
        uri = DOCUMENTS.get(path, path.removeprefix("docs/"))
    elif path.startswith("docs/") and (ROOT / path / "README.md").is_file():
        uri = f"{path.removeprefix('docs/')}/README.md"
    else:
        return f"{SOURCES}{path}{mark}{anchor}"
    return posixpath.relpath(uri, posixpath.dirname(page) or ".") + mark + anchor


def headers(language, names):
    intro = "They are part of every installation; `pkg-config --cflags --libs sublet` and CMake's `find_package(sublet)` find them."
    parts = [f"# {language} reference", f"The declarations of these headers, with their comments. {intro}"]
    for name in names:
        head, declarations = header((ROOT / HEADERS / name).read_text(), language)
        parts += [f"## {name}", head]
        for title, comment, code in declarations:
            parts += [f"### {title}", comment, fenced(language.lower().replace("++", "pp"), code)]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(text, language):
    """The head comment, and for each commented declaration outside of others: its name, comment and code."""
    chunks = list(chunks_of(text.splitlines()))
    head, declarations = comment_of(chunks[0])[0], []
    for chunk in chunks[1:]:
        comment, code = comment_of(chunk)
        if comment and (title := name_of(code)):
            declarations.append((title, comment, code))
    return head.partition(": ")[2] or head, declarations


def chunks_of(lines):
    """Runs of lines without an empty line between them outside of braces, but those of namespaces and `extern "C"`."""
    chunk, depth, is_detail = [], 0, False
    for line in lines:
        is_detail = line.startswith("namespace detail") or is_detail and not line.startswith("}")
        if is_detail:
            continue
        if re.match(r'(extern "C"|namespace [\w:]+) \{$', line) or line.startswith(("#", "}  //", "} //")):
            continue
        if line.strip() or depth > 0:
            chunk.append(line)
        elif chunk:
            yield chunk
            chunk = []
        depth += len(re.findall(r"\{", line)) - len(re.findall(r"\}", line))
    if chunk:
        yield chunk


def comment_of(chunk):
    """The text of the comment with which lines start, as Markdown, and the lines behind it."""
    if chunk[0].startswith("/*"):
        end = next(number for number, line in enumerate(chunk) if line.rstrip().endswith("*/"))
        text = [re.sub(r"^ ?\*(?: |$)", "", line) for line in chunk[: end + 1]]
        text[0] = text[0].removeprefix("/*").removeprefix("*").strip()
        text[-1] = text[-1].rstrip().removesuffix("*/").rstrip()
    else:
        end = len(list(prefix(chunk, "//"))) - 1
        text = [line.removeprefix("//").removeprefix(" ") for line in chunk[: end + 1]]
    return "\n".join(text).strip("\n"), "\n".join(chunk[end + 1 :])


def prefix(lines, mark):
    for line in lines:
        if not line.startswith(mark):
            return
        yield line


def name_of(code):
    """Returns the name that a declaration declares."""
    patterns = [
        r"^typedef (?:struct|enum) (\w+)",
        r"^(?:template <[^\n]*>\n)?(?:class|struct|enum class|enum) (\w+)",
        r"^using (\w+)",
        r"((?!__attribute__)\b\w+)\(",
        r"^#?define (\w+)",
    ]
    found = (re.search(pattern, code, re.MULTILINE) for pattern in patterns)
    return next((match[1] for match in found if match), None)


def command():
    """The help texts of the command and all of its subcommands."""
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    program = target / os.environ.get("SUBLET_PROFILE", "release") / "sublet"
    if not program.exists():
        raise PluginError(f"{program} does not exist: `cargo xtask docs` builds it")
    parts = ["# The command", "These are the help texts of `sublet` and its subcommands."]
    pending = [[]]
    while pending:
        words = pending.pop(0)
        shown = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout
        parts += ["##" + (" " if len(words) < 2 else "# ") + " ".join(["sublet", *words]), fenced("text", shown.rstrip())]
        listed = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", shown, re.MULTILINE | re.DOTALL)
        names = re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE) if listed else []
        pending = [[*words, name] for name in names if name != "help"] + pending
    return "\n\n".join(parts) + "\n"


def schema():
    """The JSON schema of graph documents, as tables."""
    document = json.loads((ROOT / "docs/graph.schema.json").read_text())
    parts = [
        "# Graph documents",
        document["description"],
        f"The schema is [graph.schema.json]({SOURCES}docs/graph.schema.json); [the guide](../graphs.md) explains the entries.",
        "## The document",
        table(document),
    ]
    for name, definition in document["$defs"].items():
        parts += [f"## {name}", definition.get("description", ""), table(definition)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(definition):
    if "properties" not in definition:
        return fenced("json", json.dumps(definition, indent=2))
    required = definition.get("required", [])
    rows = ["| entry | required | form | meaning |", "|---|---|---|---|"]
    for name, entry in definition["properties"].items():
        form = {key: value for key, value in entry.items() if key not in ("description", "properties")}
        form = json.dumps(form).replace("|", "\\|") if form else ""
        rows.append(f"| `{name}` | {'yes' if name in required else 'no'} | `{form}` | {entry.get('description', '')} |")
    return "\n".join(rows)


def fenced(language, code):
    return f"```{language}\n{code}\n```"
