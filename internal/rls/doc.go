// Package rls answers Envoy's rate limit service, v3, from the rules that
// envoyproxy/ratelimit reads: point it at a directory of such files and gateways
// need no change.
//
//	domain      a set of rules; a request names one
//	entry       a key and a value, for example remote_address and 10.0.0.1
//	descriptor  a list of entries; a request has one or several, each is decided
//	rule        what a path of entries is allowed: a limit, or unlimited
//	hits        units that a descriptor asks for; 0 looks without taking
//
// A worked example. With these rules
//
//	domain: edge
//	descriptors:
//	  - key: remote_address
//	    rate_limit: {unit: minute, requests_per_unit: 3}
//
// the descriptor [remote_address=10.0.0.1] is counted under the token
// edge~remote_address~10.0.0.1 and the resource edge, whose usage counter of the
// minute is the limit's count. Asked at second 50 for 2 hits twice:
//
//	first   OK          3 per minute, 1 remains, reset in 10s
//	second  OVER_LIMIT  3 per minute, 1 remains, reset in 10s
//
// The second one took nothing: a third one for 1 hit would be OK.
//
// Where a domain names its token (token: user_id), a descriptor with that entry
// is counted under the entry's value, as if the user had come by any other way.
package rls
