#!/usr/bin/env bash
# Guess: A reader of Chrome traces takes an end event ("E") without a name, which its begin has: the
#   format's description leaves it out, and Perfetto takes it.
# True: The trace engine of Chrome's developer tools refuses the whole file with a TypeError.
# Versions: @paulirish/trace_engine@0.0.65; node 20; 2026-11-29
# We heed it in: pipeline/observe/analysis/chrome_trace.py: each "E" has the name of its slice.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-save @paulirish/trace_engine@0.0.65 third-party-web@0.30.0 legacy-javascript@0.0.1
cat >program.mjs <<'EOF'
import * as Trace from './node_modules/@paulirish/trace_engine/models/trace/trace.js';

for (const end of [{name: 'work'}, {}]) {
  const place = {pid: 1, tid: 1, cat: 'x'};
  const events = [
    {ph: 'B', name: 'work', ts: 10, ...place},
    {ph: 'E', ts: 20, ...place, ...end},
  ];
  const model = Trace.TraceModel.Model.createWithAllHandlers();
  try {
    await model.parse(events);
    const {processes} = model.parsedTrace().data.Renderer;
    const slices = processes.get(1).threads.get(1).entries;
    console.log('with a name:', slices.map(({name, dur}) => `${name} of ${dur} us`).join());
  } catch (error) {
    console.log('without:', error.message);
  }
}
EOF
cat >seen <<'EOF'
with a name: work of 10 us
without: Cannot read properties of undefined (reading 'endsWith')
EOF
node program.mjs 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
