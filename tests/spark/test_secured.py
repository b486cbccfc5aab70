"""Source and sink against a secured node: TLS, a login by a file, and no token in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.secured_node import SecuredNode

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with SecuredNode(tmp_path_factory.mktemp("secured")) as running:
        assert isinstance(running, SecuredNode)
        yield running


def options(node: SecuredNode) -> dict[str, str]:
    return {"servers": node.http_url, "ca": node.ca, "tokenFile": str(node.secure / "admin.token")}


def test_rows_are_written_and_read_with_a_login(spark: Any, node: SecuredNode) -> None:
    status, _ = node.call("POST", "/v1/topics", {"name": "sales", "partitions": 2})
    assert status == 201
    rows = spark.createDataFrame([("DE", "12.5"), ("FR", "7")], "key string, value string")
    rows.write.format("penstock").options(**options(node)).mode("append").save("sales")
    table = spark.read.format("penstock").options(**options(node)).load("sales")
    assert sorted(bytes(row.value) for row in table.collect()) == [b"12.5", b"7"]


def test_without_a_login_the_node_refuses(spark: Any, node: SecuredNode) -> None:
    known = {name: text for name, text in options(node).items() if name != "tokenFile"}
    with pytest.raises(Exception, match="AuthenticationFailed: Say who you are"):
        spark.read.format("penstock").options(**known).load("sales").collect()


def test_a_plan_shows_neither_the_token_nor_where_it_lies(spark: Any, node: SecuredNode) -> None:
    table = spark.read.format("penstock").options(**options(node)).load("sales")
    plans = table._jdf.queryExecution().toString() + table._jdf.queryExecution().logical().toString()
    assert node.token not in plans
    assert options(node)["tokenFile"] not in plans
    # Spark's own rule: options whose names have `token` in them are not shown.
    conf = spark._jsparkSession.sessionState().conf()
    assert conf.redactOptions(spark._jvm.PythonUtils.toScalaMap({"tokenFile": "/there"})).apply("tokenFile") != "/there"
