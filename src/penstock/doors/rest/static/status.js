// The status page: asks the node for its figures every two seconds and shows them. Looking never consumes anything.

const POLL_MS = 2000;
const ROWS_MAX = 500;

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

let before = null;
let latest = null;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? number.format(count) : small.format(count)} ${units[unit]}`;
}

function duration(ms) {
  const minutes = Math.floor(ms / 60000);
  if (minutes < 1) return `${Math.floor(ms / 1000)} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

const rate = (perSecond) => (perSecond < 10 ? small : number).format(perSecond);
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

// Counters only grow, unless the node was restarted in between: then there is no rate to tell.
function withRates(now, then) {
  const seconds = then ? (now.time_ms - then.time_ms) / 1000 : 0;
  const known = new Map(then ? then.topics.map((topic) => [topic.topic, topic]) : []);
  const fields = ["messages_produced", "bytes_produced", "messages_consumed", "bytes_consumed"];
  return now.topics.map((topic) => {
    const old = known.get(topic.topic);
    const rates = {};
    for (const field of fields) {
      rates[`${field}_rate`] = old && seconds > 0 ? Math.max(topic[field] - old[field], 0) / seconds : 0;
    }
    return { ...topic, ...rates, errors: Object.values(topic.produce_errors).reduce((a, b) => a + b, 0) };
  });
}

function cell(text, kind) {
  const element = document.createElement("td");
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function row(topic) {
  const element = document.createElement("tr");
  const quiet = (value) => (value ? "" : "zero");
  element.append(
    cell(topic.topic),
    cell(number.format(topic.partitions)),
    cell(number.format(topic.messages), quiet(topic.messages)),
    cell(bytes(topic.size_bytes), quiet(topic.size_bytes)),
    cell(rate(topic.messages_produced_rate), quiet(topic.messages_produced_rate)),
    cell(rate(topic.messages_consumed_rate), quiet(topic.messages_consumed_rate)),
    cell(number.format(topic.errors), topic.errors ? "bad" : "zero"),
  );
  element.firstChild.title = topic.topic;
  return element;
}

function showTopics() {
  if (!latest) return;
  const wanted = at("filter").value.trim().toLowerCase();
  const rows = latest.filter((topic) => topic.topic.toLowerCase().includes(wanted));
  at("topics").replaceChildren(...rows.slice(0, ROWS_MAX).map(row));
  const isEmpty = latest.length === 0;
  at("empty").hidden = !isEmpty;
  at("example").hidden = !isEmpty;
  document.querySelector(".scroll").hidden = isEmpty;
}

function showTiles(metrics) {
  at("rate-in").textContent = `${rate(sum(latest, "messages_produced_rate"))}/s`;
  at("bytes-in").textContent = `${bytes(sum(latest, "bytes_produced_rate"))}/s`;
  at("rate-out").textContent = `${rate(sum(latest, "messages_consumed_rate"))}/s`;
  at("bytes-out").textContent = `${bytes(sum(latest, "bytes_consumed_rate"))}/s`;
  at("stored").textContent = bytes(sum(latest, "size_bytes"));
  at("stored-detail").textContent =
    `${number.format(sum(latest, "messages"))} messages in ${number.format(latest.length)} topics`;
  const { p50_ms: p50, p99_ms: p99, count } = metrics.produce_latency;
  at("latency").textContent = p50 === null ? "–" : `≤ ${small.format(p50)} ms`;
  at("latency-detail").textContent =
    p99 === null ? "nothing published yet" : `p99 ≤ ${small.format(p99)} ms of ${number.format(count)}`;
}

function showHealth(health, cluster) {
  at("health").textContent = health.status;
  at("health").className = `pill ${health.status}`;
  at("identity").textContent =
    `Node ${health.node_id} · version ${health.version} · up ${duration(health.uptime_ms)} · cluster ${cluster.cluster_id}`;
  const findings = [...health.reasons, ...health.warnings];
  at("findings").hidden = findings.length === 0;
  at("findings").replaceChildren(
    ...findings.map((finding) => {
      const item = document.createElement("li");
      const where = finding.topic === null ? "" : `${finding.topic}-${finding.partition}: `;
      item.textContent = where + finding.detail;
      return item;
    }),
  );
}

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function refresh() {
  try {
    const [health, cluster, metrics] = await Promise.all(
      ["/v1/admin/health", "/v1/admin/cluster", "/v1/admin/metrics"].map(get),
    );
    latest = withRates(metrics, before);
    before = metrics;
    showHealth(health, cluster);
    showTiles(metrics);
    showTopics();
    at("updated").textContent = `Updated ${new Date().toLocaleTimeString()}`;
  } catch {
    at("health").textContent = "unreachable";
    at("health").className = "pill unreachable";
  }
  setTimeout(refresh, document.hidden ? POLL_MS * 5 : POLL_MS);
}

at("example").textContent =
  `curl ${location.origin}/v1/topics/hello/publish -d '{"key": "world", "value": "Hello, Penstock"}'`;
at("filter").addEventListener("input", showTopics);
refresh();
