package enforcer

import (
	"net/http"
	"strconv"
	"time"
)

// Styles of headers that clients knew before RateLimit and RateLimit-Policy.
const (
	// XRateLimit is X-RateLimit-Limit, -Remaining and -Reset, the last in unix seconds.
	XRateLimit = "x-ratelimit"
	// ThreeRateLimit is RateLimit-Limit, -Remaining and -Reset, the last in seconds from now.
	ThreeRateLimit = "ratelimit"
)

// older adds the headers of an older style, which know of one limit only: the one
// that refused, or else the one with the smallest share left.
func older(h http.Header, style string, a Answer) {
	if (style != XRateLimit && style != ThreeRateLimit) || len(a.Limits) == 0 {
		return
	}
	at := a.Violated
	if at < 0 {
		at = 0
		for i := range a.Limits {
			if a.Limits[i].Remaining*a.Rule.Limits[at].Quota < a.Limits[at].Remaining*a.Rule.Limits[i].Quota {
				at = i
			}
		}
	}
	s := a.Limits[at]
	until := max(s.Reset, 0)
	prefix, reset := "Ratelimit-", seconds(until)
	if style == XRateLimit {
		prefix, reset = "X-Ratelimit-", (a.At+until.Milliseconds()+999)/int64(time.Second/time.Millisecond)
	}
	for name, value := range map[string]int64{"Limit": a.Rule.Limits[at].Quota, "Remaining": s.Remaining, "Reset": reset} {
		h[prefix+name] = []string{strconv.FormatInt(value, 10)}
	}
}
