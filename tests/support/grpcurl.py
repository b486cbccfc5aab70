"""As much of grpcurl as the tutorial uses: ``grpcurl -plaintext [-d JSON] ADDRESS list|SERVICE/METHOD``.

It knows nothing but the address and asks the node what there is, and prints what grpcurl prints.
"""

from __future__ import annotations

import argparse
import json

from tests.support.reflection import ReflectionClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-d", default="{}")
    parser.add_argument("address")
    parser.add_argument("method")
    arguments = parser.parse_args()
    with ReflectionClient(arguments.address, keeps_names=False) as client:
        if arguments.method == "list":
            print("\n".join(sorted(client.services())))
        else:
            print(json.dumps(client.call(arguments.method, json.loads(arguments.d)), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
