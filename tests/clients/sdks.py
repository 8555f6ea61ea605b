"""One logical call of an SDK for each line of the input, with the SDK's own retries: `python sdks.py NAME`.

A line is JSON: the `url` of the service and, where they are wanted, `key`, `amount`, `headers`, `timeout` in seconds. What
comes of it is a line, too: what the SDK `raised`, if it did, and the `text` that a person or a model gets to read.
"""

import json
import sys


def openai(url, key, amount, headers, timeout):
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="sk-1", default_headers=headers, timeout=timeout)
    messages = [{"role": "user", "content": f"pay {amount}"}]
    return client.chat.completions.create(model="m", messages=messages, extra_headers=named(key)).id


def anthropic(url, key, amount, headers, timeout):
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="sk-1", default_headers=headers, timeout=timeout)
    messages = [{"role": "user", "content": f"pay {amount}"}]
    return client.messages.create(model="m", max_tokens=10, messages=messages, extra_headers=named(key)).id


def stripe(url, key, amount, headers, timeout):
    """Makes a key of its own for each call, so that no headers have to name it."""
    import stripe

    stripe.api_key, stripe.api_base = "sk_test_1", url
    stripe.default_http_client = stripe.RequestsClient(timeout=timeout)
    options = {"idempotency_key": key} if key else {}
    return stripe.PaymentIntent.create(amount=amount, currency="eur", **options).id


def named(key):
    return {"Idempotency-Key": key} if key else {}


if __name__ == "__main__":
    call = {"openai": openai, "anthropic": anthropic, "stripe": stripe}[sys.argv[1]]
    for line in sys.stdin:
        asked = {"key": None, "amount": 1, "headers": {}, "timeout": 60} | json.loads(line)
        try:
            came = {"raised": None, "text": call(**asked)}
        except Exception as error:
            came = {"raised": type(error).__name__, "text": str(error)}
        print(json.dumps(came), flush=True)
