package quota

// Allow is the decision that allows a request, given each limit's status after it.
func Allow(at int64, statuses []Status) Decision {
	return Decision{Allowed: true, At: at, Limits: statuses, Violated: -1}
}

// Refuse is the decision that refuses a request, given its limits and the status
// of each.
func Refuse(at int64, limits []Limit, statuses []Status) Decision {
	d := Decision{At: at, Limits: statuses, Violated: -1}
	for i := range statuses {
		if retry := statuses[i].RetryAfter; retry > d.RetryAfter && !limits[i].Shadow {
			d.Violated, d.RetryAfter = i, retry
		}
	}
	return d
}

// Block is the decision about a blocked request.
func Block(at int64) Decision {
	return Decision{At: at, Violated: -1, RetryAfter: Never}
}
