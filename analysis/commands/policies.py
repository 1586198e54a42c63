"""`kvtwin policies`: the memory managers there are."""

from ..options import JsonOption


def policies(as_json: JsonOption = False) -> None:
    """List the policies, one line each."""
    from kvtwin.sim import describe_policies

    from ..printing import print_json

    described = describe_policies()
    if as_json:
        entries = [
            {"policy": name, "description": text, "scheduler": scheduler}
            for name, text, scheduler in described
        ]
        print_json({"policies": entries})
        return
    width = max(len(name) for name, _, _ in described)
    for name, text, scheduler in described:
        print(f"{name:<{width}}  {text} [scheduler: {scheduler}]")
