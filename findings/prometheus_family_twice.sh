#!/usr/bin/env bash
# Guess: Samples of one metric may stand at two places of a page of metrics; a reader puts them
#   together or refuses.
# True: prometheus_client's reader of the text form makes two families of them, the second without
#   its type. Its reader of OpenMetrics refuses the page, but takes the same sample written twice.
# Versions: prometheus_client==0.26.0; Python 3.11; 2026-11-29
# We heed it in: pipeline/observe/metrics.py: pages of several processes are merged by family.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check prometheus_client==0.26.0
cat >program.py <<'EOF'
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

APART = '# TYPE a gauge\na{op="x"} 1\n# TYPE b gauge\nb 1\na{op="y"} 1\n'
TWICE = "# TYPE a gauge\na 1\na 1\n"
for name, text in (("apart", APART), ("twice", TWICE)):
    families = parser.text_string_to_metric_families(text)
    print(name, "text:", [(family.name, family.type, len(family.samples)) for family in families])
    try:
        families = list(openmetrics.text_string_to_metric_families(text + "# EOF\n"))
        print(name, "OpenMetrics:", [(family.name, family.type, len(family.samples)) for family in families])
    except ValueError as error:
        print(name, "OpenMetrics:", type(error).__name__)
EOF
cat >seen <<'EOF'
apart text: [('a', 'gauge', 1), ('b', 'gauge', 1), ('a', 'unknown', 1)]
apart OpenMetrics: ValueError
twice text: [('a', 'gauge', 2)]
twice OpenMetrics: [('a', 'gauge', 1)]
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
