"""Enqueues jobs over HTTP with nothing but the standard library."""
import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ["FLEXIQ_SERVER"] + "/flexiq.v1.ProducerService/Enqueue"
HEADERS = {"Authorization": "Bearer " + os.environ["FLEXIQ_TOKEN"], "Content-Type": "application/json"}


def enqueue(job):
    request = urllib.request.Request(URL, json.dumps({"job": job}).encode(), HEADERS)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["result"]["job"]


for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    try:
        job = enqueue({"task": "mail", "args": {"to": "ada", "n": n}})
        print(job["status"], job["id"])
    except urllib.error.HTTPError as error:
        if error.code != 429:
            raise
        refusal = json.load(error)["details"][0]["debug"]
        print(refusal["reason"], json.dumps(refusal["metadata"]))
