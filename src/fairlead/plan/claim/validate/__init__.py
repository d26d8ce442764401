"""Says what is wrong with an object of resource.k8s.io, in the API server's words and by its field paths.

A module a kind, each with `problems` for a new object and `update_problems` for a changed one; `door` puts defaults,
feature gates and rules together. The rules expect what `plan.claim.default` and `plan.claim.gate` return: the server
fills in defaults and drops the fields of disabled features before it looks at anything.
All problems of an object come at once, one line each, `spec.devices.requests[0].exactly.count: Invalid value: 0: …`,
and lazily: a list that is too long is refused by its length alone. The order is not the server's.
CEL expressions are judged elsewhere: the caller brings the function.
Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, pkg/apis/resource/v1/zz_generated.validations.go.
"""
