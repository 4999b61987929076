package quota

// Account is all that decisions about one token need to know: what it used and
// how far each limit is. The zero value is a token that has never been seen. It
// is not safe for concurrent use.
type Account struct {
	cells  map[cellKey]*Cell
	states map[stateKey]*state

	reservations map[string]*reservation
	once         map[string]int64 // IDs of adjustments, until when in unix ms
}

type cellKey struct {
	resource string
	minute   int64
}

// stateKey names a limit's state: start is the window's start in unix ms for a
// counter, -1 for a state that spans windows.
type stateKey struct {
	limit string
	start int64
}

// Cell is what a token used of one resource in one minute. Units only grow.
type Cell struct {
	Resource                     string
	Minute                       int64 // epoch minute
	Admitted, Rejected, Refunded int64 // units
	Last                         int64 // unix ms of the last admission; 0 when there was none
	// Noted and Dirty are the owner's marks: the account never looks at them.
	Noted struct{ Admitted, Rejected, Refunded int64 }
	Dirty bool

	adjusted int64 // units that limits which are this cell count on top; may be negative
}

// Decide decides count equal requests at once, of which it allows as many as fit:
// as if they had come one after the other, except that all are told the state
// after the last one. The cell is the one that they were counted in; nil when
// nothing was counted.
func (a *Account) Decide(r *Request, count, at int64) (answer EntryAnswer, cell *Cell) {
	if r.Blocked {
		if units := r.Cost * count; units > 0 {
			cell = a.cell(r.Resource, Minute(at))
			cell.Rejected += units
		}
		return EntryAnswer{No: Block(at)}, cell
	}
	// First pass: how many does each limit allow?
	var room [8]int64
	fits := append(room[:0], make([]int64, len(r.Limits))...)
	fit := count
	for i := range r.Limits {
		l := &r.Limits[i]
		fits[i] = a.fit(l, r, count, at)
		if !l.Shadow {
			fit = min(fit, fits[i])
		}
	}
	taken := fit
	if r.Overdraft {
		taken = count
	}
	// Second pass: take what all of them allow.
	unobjected := fit
	if r.Cost > 0 {
		cell = a.cell(r.Resource, Minute(at))
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		n := taken
		if l.Shadow {
			unobjected = min(unobjected, fits[i])
			if !r.Overdraft {
				n = min(n, fits[i])
			}
		}
		if l.CountRejected {
			n = count
		}
		if n > 0 && r.Cost > 0 {
			a.take(l, r, n*r.Cost, at)
		}
	}
	if cell != nil {
		cell.Admitted += taken * r.Cost
		cell.Rejected += (count - taken) * r.Cost
		if taken > 0 {
			cell.Last = max(cell.Last, at)
		}
		if r.Reserve != "" && taken > 0 {
			a.reserve(r, at)
		}
	}
	answer = EntryAnswer{Fit: fit, Clear: unobjected}
	if unobjected > 0 {
		answer.Yes = Allow(at, a.statuses(r, at, -1))
	}
	if unobjected < fit {
		answer.Over = Allow(at, a.statuses(r, at, r.Cost))
	}
	if fit < count {
		answer.No = Refuse(at, r.Limits, a.statuses(r, at, r.Cost))
	}
	return answer, cell
}

// fit returns how many of count requests l allows.
func (a *Account) fit(l *Limit, r *Request, count, at int64) int64 {
	if !l.IsCounter() {
		s := a.settled(l, at)
		return l.fit(&s, r, count, at)
	}
	free := l.Quota - a.used(l, r.Resource, at)
	switch {
	case free < 0:
		return 0
	case r.Cost == 0:
		return count
	}
	return min(count, free/r.Cost)
}

// take counts units in l.
func (a *Account) take(l *Limit, r *Request, units, at int64) {
	if l.IsUsageCounter() {
		return // the cell is its count
	}
	s := a.state(l, at)
	*s = l.settled(*s, at)
	l.take(s, r, units, at)
}

func (a *Account) statuses(r *Request, at, refused int64) []Status {
	if len(r.Limits) == 0 {
		return nil
	}
	statuses := make([]Status, len(r.Limits))
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.IsCounter() {
			statuses[i] = l.CountStatus(a.used(l, r.Resource, at), at, refused)
			continue
		}
		s := a.settled(l, at)
		statuses[i] = l.status(&s, r, at, refused)
	}
	return statuses
}

// used returns the units that l, a counter, has counted in the window of at.
func (a *Account) used(l *Limit, resource string, at int64) int64 {
	if l.IsUsageCounter() {
		if c := a.cells[cellKey{resource, Minute(at)}]; c != nil {
			return c.Admitted + c.adjusted
		}
		return 0
	}
	if s := a.states[keyOf(l, at)]; s != nil {
		return s.used
	}
	return 0
}

// settled returns what l remembers, as of at.
func (a *Account) settled(l *Limit, at int64) state {
	if s := a.states[keyOf(l, at)]; s != nil {
		return l.settled(*s, at)
	}
	return state{}
}

func keyOf(l *Limit, at int64) stateKey {
	if l.IsCounter() {
		return stateKey{l.Name, l.WindowStart(at)}
	}
	return stateKey{l.Name, -1}
}

// state returns the state of l to be changed.
func (a *Account) state(l *Limit, at int64) *state {
	key := keyOf(l, at)
	s := a.states[key]
	if s == nil {
		s = new(state)
		if a.states == nil {
			a.states = make(map[stateKey]*state)
		}
		a.states[key] = s
	}
	return s
}

func (a *Account) cell(resource string, minute int64) *Cell {
	key := cellKey{resource, minute}
	c := a.cells[key]
	if c == nil {
		c = &Cell{Resource: resource, Minute: minute}
		if a.cells == nil {
			a.cells = make(map[cellKey]*Cell)
		}
		a.cells[key] = c
	}
	return c
}

// Restore sets a cell's units and returns the cell. Limits whose count is not the
// usage counter itself know nothing of it.
func (a *Account) Restore(c Cell) *Cell {
	cell := a.cell(c.Resource, c.Minute)
	cell.Admitted, cell.Rejected, cell.Refunded, cell.Last = c.Admitted, c.Rejected, c.Refunded, c.Last
	return cell
}

// Cell returns what was counted of a resource in an epoch minute, nil if nothing.
func (a *Account) Cell(resource string, minute int64) *Cell {
	if c := a.cells[cellKey{resource, minute}]; c != nil && c.counted() {
		return c
	}
	return nil
}

// counted is false for a cell that only holds an adjustment.
func (c *Cell) counted() bool { return c.Admitted|c.Rejected|c.Refunded != 0 }

// Cells calls yield with every cell until it returns false.
func (a *Account) Cells(yield func(*Cell) bool) {
	for _, c := range a.cells {
		if c.counted() && !yield(c) {
			return
		}
	}
}

// Expire forgets the states that are worth nothing since before stale and the
// cells of minutes that ended before grace, both unix ms, and reports whether
// nothing is left.
func (a *Account) Expire(stale, grace int64) (empty bool) {
	for key, s := range a.states {
		if s.expire < stale {
			delete(a.states, key)
		}
	}
	for key := range a.cells {
		if (key.minute+1)*minuteMs < grace {
			delete(a.cells, key)
		}
	}
	for id, r := range a.reservations {
		if r.expire < stale {
			delete(a.reservations, id)
		}
	}
	for id, until := range a.once {
		if until < stale {
			delete(a.once, id)
		}
	}
	return len(a.states)+len(a.cells)+len(a.reservations)+len(a.once) == 0
}
