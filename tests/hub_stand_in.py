"""A stand-in for the hub: the part of its HTTP interface that is used to create, fill and read a repository."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Data set repositories in memory.

    Attributes:
        commits: Of each repository, the files of every commit by its id, in order.
        calls: Method and path of every request.
    """

    def __init__(self):
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.large: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.endpoint = ""

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes] | None:
        commits = self.commits.get(repo)
        if not commits:
            return None
        return commits[list(commits)[-1]] if revision == "main" else commits.get(revision)

    def commit(self, repo: str, lines: list[dict]) -> str:
        files = dict(self.files(repo) or {})
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
        id = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[repo][id] = files
        return id


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self, status: int, content: bytes | dict = b"", **headers: str) -> None:
            if isinstance(content, dict):
                content, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **headers}
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def missing(self, what: str) -> None:
            self.answer(404, {"error": f"{what} not found"}, X_Error_Code=what, X_Error_Message=f"{what} is missing")

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.calls.append(f"{self.command} /{path}")
            parts = path.split("/")
            if path == "api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                if self.headers.get("Authorization") != "Bearer secret":
                    return self.answer(401, {"error": "not allowed"})
                if name in hub.commits:
                    return self.answer(409, {"error": "exists", "url": f"{hub.endpoint}/datasets/{name}"})
                hub.commits[name] = {}
                hub.commit(name, [])
                return self.answer(200, {"url": f"{hub.endpoint}/datasets/{name}"})
            if path == "api/validate-yaml":
                return self.answer(200, {"errors": [], "warnings": []})
            if parts[0] == "large":
                hub.large[parts[1]] = body
                return self.answer(200)
            if parts[-1] == "batch":  # of large files: where to put them
                wanted = json.loads(body)["objects"]
                put = [{**o, "actions": {"upload": {"href": f"{hub.endpoint}/large/{o['oid']}"}}} for o in wanted]
                return self.answer(200, {"transfer": "basic", "objects": put})
            repo = "/".join(parts[2:4] if parts[0] == "api" else parts[1:3])
            if repo not in hub.commits:
                return self.missing("RepoNotFound")
            if "preupload" in parts:
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = ["lfs" if name.endswith(".parquet") else "regular" for name in names]
                files = [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in zip(names, modes, strict=True)]
                return self.answer(200, {"files": files})
            if "commit" in parts:
                id = hub.commit(repo, [json.loads(line) for line in body.splitlines()])
                url = f"{hub.endpoint}/datasets/{repo}/commit/{id}"
                return self.answer(200, {"success": True, "commitOid": id, "commitUrl": url})
            if "resolve" in parts:
                at = parts.index("resolve")
                files = hub.files(repo, parts[at + 1])
                if files is None:
                    return self.missing("RevisionNotFound")
                content = files.get("/".join(parts[at + 2 :]))
                if content is None:
                    return self.missing("EntryNotFound")
                commit = next(id for id, known in hub.commits[repo].items() if known is files)
                return self.answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)
            return self.missing("EntryNotFound")

        do_GET = do_HEAD = do_POST = do_PUT = handle_any

    return Handler


@contextmanager
def stand_in():
    """A hub that runs on this machine as long as the code inside."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
