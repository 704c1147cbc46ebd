"""A server of S3 on the loopback interface: moto, which keeps the files in its memory."""

import sys
import urllib.request
from typing import Final

from tests.servers.server import ProcessServer

PORT: Final = 9000
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "flbench",
    "AWS_SECRET_ACCESS_KEY": "flbench-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables of its clients."""


class S3(ProcessServer):
    """The server. It accepts any key; a proxy before it may refuse them."""

    address = f"http://127.0.0.1:{PORT}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/moto-api/", timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def bucket(self, name: str) -> str:
        """Create a bucket, and return its address."""
        request = urllib.request.Request(f"{self.address}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            return f"s3://{name}"
