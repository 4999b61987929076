package quota

// Allow is the decision that allows a request, given each limit's status after it.
func Allow(at int64, limits []Status) Decision {
	return Decision{Allowed: true, At: at, Limits: limits, Violated: -1}
}

// Refuse is the decision that refuses a request, given each limit's status.
func Refuse(at int64, limits []Status) Decision {
	d := Decision{At: at, Limits: limits, Violated: -1}
	for i := range limits {
		if retry := limits[i].RetryAfter; retry > d.RetryAfter {
			d.Violated, d.RetryAfter = i, retry
		}
	}
	return d
}

// Block is the decision about a blocked request.
func Block(at int64) Decision {
	return Decision{At: at, Violated: -1, RetryAfter: Never}
}
