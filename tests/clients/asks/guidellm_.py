"""guidellm, which validates the service, then asks it one request behind the other."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokens import tokenizer_in
from told import ability, same

COUNT = 3


@ability("stream")
def stream():
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = {
            "--backend": f"kind=openai_http,target={sys.argv[1]},model=scripted",
            "--profile": "kind=synchronous",
            "--constraint": f"kind=max_requests,count={COUNT}",
            "--tokenizer": f"kind=hf_auto,model={tokenizer_in(Path(folder))}",
            "--data": "kind=synthetic_text,prompt_tokens=8,output_tokens=6",
            "--output": f"kind=json,path={report}",
        }
        words = [word for option in options.items() for word in option]
        command = [sys.executable, "-m", "guidellm", "run", *words, "--disable-console"]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-500:]
        found = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    same((found["request_totals"]["successful"], found["request_totals"]["errored"]), (COUNT, 0))
    same(found["output_token_count"]["successful"]["mean"], 6.0)
