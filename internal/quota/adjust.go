package quota

import (
	"errors"
	"slices"
	"time"

	"github.com/tallygate/tallygate/internal/token"
)

// AdjustmentKind is what an adjustment does.
type AdjustmentKind uint8

// The kinds of adjustments.
const (
	// Refund gives units back that were admitted at At: they are counted as
	// refunded, and every limit forgets them in the window in which they were
	// counted. A window that has ended since is left alone.
	Refund AdjustmentKind = iota
	// Charge counts units on top of what was admitted at At, even past a quota.
	Charge
	// Grant lets units more pass now. In a window with an end they may go beyond the
	// quota; an algorithm without one gives back at most what is used, the oldest
	// first. Nothing is counted. Concurrency has nothing to grant.
	Grant
	// Reset forgets what the limits have counted. Nothing is counted.
	Reset
)

// Adjustment changes what limits have counted of a token, outside of a decision.
// It is a value.
type Adjustment struct {
	Kind     AdjustmentKind
	Token    token.ID
	Resource string // canonical: of the request it is about, or of the limits that are usage counters
	Units    int64  // 0 to MaxCost; Reset ignores them
	At       int64  // unix ms by the store's clock, of Refund and Charge: the decision's At; 0 means now
	Limits   []Limit
	// ID makes a Refund or a Charge happen once, however often it is asked for
	// within a day. Without one each call counts.
	ID string
}

// RememberFor is how long an adjustment's ID is remembered.
const RememberFor = 24 * time.Hour

// Errors of adjustments.
var (
	ErrTooLate       = errors.New("nothing was admitted at that time, or its usage counter is gone; nothing was changed")
	ErrUnits         = errors.New("units are out of range")
	ErrNoReservation = errors.New("no such reservation: it was never made, or it has expired")
)

// Check tells whether the adjustment can be made at all.
func (j *Adjustment) Check() error {
	if j.Units < 0 || j.Units > MaxCost {
		return ErrUnits
	}
	return nil
}

// Adjust makes an adjustment at time now; its At is set. The error is ErrTooLate
// when the cell is gone that a Refund or a Charge belongs to.
func (a *Account) Adjust(j *Adjustment, now int64) (*Cell, error) {
	cell := a.cells[cellKey{j.Resource, Minute(j.At)}]
	switch j.Kind {
	case Refund, Charge:
		if j.ID != "" && now < a.once[j.ID] {
			return nil, nil
		}
		if cell == nil || cell.Admitted == 0 {
			return nil, ErrTooLate
		}
		if j.ID != "" {
			if a.once == nil {
				a.once = make(map[string]int64)
			}
			a.once[j.ID] = now + ms(RememberFor)
		}
	case Grant, Reset:
		cell = nil
	}
	units := j.Units
	if j.Kind == Refund {
		units = -units
	}
	for i := range j.Limits {
		a.adjust(&j.Limits[i], j, units, now)
	}
	switch j.Kind {
	case Refund:
		cell.Refunded += j.Units
	case Charge:
		cell.Admitted += j.Units
	}
	return cell, nil
}

// adjust changes one limit's count by units, which are below 0 for a refund.
func (a *Account) adjust(l *Limit, j *Adjustment, units, now int64) {
	if l.IsUsageCounter() {
		c := a.cells[cellKey{j.Resource, Minute(j.At)}]
		switch {
		case j.Kind == Grant:
			c = a.cell(j.Resource, Minute(j.At))
			c.adjusted -= units
		case c == nil, j.Kind == Charge: // a charge raises the counter itself
		case j.Kind == Reset:
			c.adjusted = -c.Admitted
		default:
			c.adjusted += max(units, -max(0, c.Admitted+c.adjusted))
		}
		return
	}
	key := keyOf(l, j.At)
	s := a.states[key]
	switch {
	case j.Kind == Reset:
		delete(a.states, key)
	case j.Kind == Grant && (l.IsCounter() || l.FromFirst):
		s = a.state(l, j.At)
		*s = l.settled(*s, now)
		l.take(s, &Request{}, -units, now)
	case l.Algorithm == TokenBucket:
		if j.Kind == Grant {
			units = -units
		}
		if settled := a.settled(l, now); settled.debt > 0 || units > 0 {
			s = a.state(l, now)
			*s = settled
			l.owe(s, units, now)
		}
	case s == nil:
	case l.IsCounter():
		s.used += max(units, -max(0, s.used))
	case l.FromFirst:
		if live := l.settled(*s, now); live.start > 0 && j.At >= live.start {
			s.used += max(units, -max(0, s.used))
		}
	case j.Kind == Grant:
		forget(l.settled(*s, now).parts, units)
	default:
		l.shift(l.settled(*s, now).parts, units, j.At)
	}
}

// shift changes by units what was counted at time at, if that is still remembered,
// and never to below 0.
func (l *Limit) shift(live []part, units, at int64) {
	if l.Algorithm == SlidingWindow {
		at /= ms(l.Precision)
	}
	for i := len(live) - 1; i >= 0; i-- {
		p := &live[i]
		if p.at != at {
			continue
		}
		p.units += max(units, -max(0, p.units))
		if l.Algorithm == SlidingLog {
			p.units = min(p.units, l.Quota+1)
		}
		return
	}
}

// forget drops units, the oldest first.
func forget(live []part, units int64) {
	for i := range live {
		n := min(units, max(0, live[i].units))
		live[i].units -= n
		units -= n
	}
}

// owe adds units to a bucket's debt, which never exceeds two full buckets.
func (l *Limit) owe(s *state, units, at int64) {
	unit, rate := l.Bucket()
	most := 2 * l.Capacity()
	s.debt = min(max(0, s.debt+max(-most, min(units, most))*unit), most*unit)
	s.seen = max(s.seen, at)
	s.expire = s.seen + ceilDiv(s.debt, rate)
}

// reservation is an estimate that waits to be settled.
type reservation struct {
	at, estimate int64
	settled      bool
	expire       int64 // unix ms
}

// reserve remembers an allowed request's estimate.
func (a *Account) reserve(r *Request, at int64) {
	if a.reservations == nil {
		a.reservations = make(map[string]*reservation)
	}
	a.reservations[r.Reserve] = &reservation{at: at, estimate: r.Cost, expire: at + ms(r.ReserveFor)}
}

// Settlement replaces a reservation's estimate by what was used in the end.
type Settlement struct {
	Token    token.ID
	Resource string
	ID       string // Reserve of the request
	Actual   int64  // units, 0 to MaxCost; counted even past the quota
	Limits   []Limit
}

// Reserved returns the time and the estimate of a reservation at time now.
func (a *Account) Reserved(id string, now int64) (at, estimate int64, err error) {
	r := a.reservations[id]
	if r == nil || now >= r.expire {
		return 0, 0, ErrNoReservation
	}
	return r.at, r.estimate, nil
}

// Settle settles a reservation at time now. Settling it again changes nothing.
func (a *Account) Settle(s *Settlement, now int64) (*Cell, error) {
	at, estimate, err := a.Reserved(s.ID, now)
	if err != nil || a.reservations[s.ID].settled {
		return nil, err
	}
	a.reservations[s.ID].settled = true
	j := Adjustment{Kind: Charge, Token: s.Token, Resource: s.Resource, Units: s.Actual - estimate, At: at, Limits: s.Limits}
	switch {
	case j.Units == 0:
		return nil, nil
	case j.Units < 0:
		j.Kind, j.Units = Refund, -j.Units
	}
	return a.Adjust(&j, now)
}

// Release gives back what was taken under a lease from limits of concurrency.
func (a *Account) Release(name string, limits []Limit) {
	for i := range limits {
		l := &limits[i]
		if l.Algorithm != Concurrency {
			continue
		}
		if s := a.states[keyOf(l, 0)]; s != nil {
			s.leases = slices.DeleteFunc(s.leases, func(h lease) bool { return h.id == name })
		}
	}
}
