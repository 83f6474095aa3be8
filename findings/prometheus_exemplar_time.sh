#!/usr/bin/env bash
# Guess: A reader of Prometheus' text format refuses a line that ends with an exemplar, or passes
#   over the exemplar.
# True: prometheus_client's reader takes the exemplar's time for the time of the sample, a
#   thousandth of it: a count of today is of January 1970. Its writer of that format leaves
#   exemplars out; only OpenMetrics has them.
# Versions: prometheus_client==0.26.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/observe/metrics.py: exemplars are in the OpenMetrics page only, which is
#   not made from the text.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check prometheus_client==0.26.0
cat >program.py <<'EOF'
import prometheus_client.openmetrics.parser as openmetrics
import prometheus_client.parser as text

LINE = 'took_bucket{le="+Inf"} 2.0 # {trace_id="0af7"} 0.5 1795967227.966'
PAGE = f"# TYPE took histogram\n{LINE}\ntook_count 2.0\ntook_sum 1.0\n"

for name, read, page in (
    ("OpenMetrics", openmetrics.text_string_to_metric_families, PAGE + "# EOF\n"),
    ("text", text.text_string_to_metric_families, PAGE),
):
    (family,) = read(page)
    sample = family.samples[0]
    print(name, "value", sample.value, "time", sample.timestamp, "exemplar", sample.exemplar)
EOF
cat >seen <<'EOF'
OpenMetrics value 2.0 time None exemplar Exemplar(labels={'trace_id': '0af7'}, value=0.5, timestamp=Timestamp(1795967227, 966000000))
text value 2.0 time 1795967.227966 exemplar None
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
