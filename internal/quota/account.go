package quota

// Account is all that decisions about one token need to know: what it used and
// how far each limit is. The zero value is a token that has never been seen. It
// is not safe for concurrent use.
type Account struct {
	cells  map[cellKey]*Cell
	states map[stateKey]*state
}

type cellKey struct {
	resource string
	minute   int64
}

// stateKey names one limit's state: start is the window's start in unix ms.
type stateKey struct {
	limit string
	start int64
}

// state is one limit's count.
type state struct {
	used int64 // units
	end  int64 // unix ms from which it is worth nothing
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
}

// Decide decides count equal requests at once, of which it allows as many as fit:
// as if they had come one after the other, except that all are told the state
// after the last one. yes is the decision for the first fit ones and no the one
// for the rest; one that nobody gets is left zero. The cell is the one that the
// requests were counted in; nil when nothing was counted.
func (a *Account) Decide(req *Request, count, at int64) (fit int64, yes, no Decision, cell *Cell) {
	if req.Blocked {
		if units := req.Cost * count; units > 0 {
			cell = a.cell(req.Resource, Minute(at))
			cell.Rejected += units
		}
		return 0, Decision{}, Block(at), cell
	}
	fit = count
	if req.Cost > 0 {
		for i := range req.Limits {
			l := &req.Limits[i]
			fit = min(fit, max(0, l.Quota-a.used(l, req.Resource, at))/req.Cost)
		}
		cell = a.cell(req.Resource, Minute(at))
		a.take(req, fit*req.Cost, at, cell)
		cell.Rejected += (count - fit) * req.Cost
	}
	if fit > 0 {
		yes = Allow(at, a.statuses(req, at, 0))
	}
	if fit < count {
		no = Refuse(at, a.statuses(req, at, req.Cost))
	}
	return fit, yes, no, cell
}

// take commits units to every limit and to the cell.
func (a *Account) take(req *Request, units, at int64, cell *Cell) {
	if units == 0 {
		return
	}
	for i := range req.Limits {
		if l := &req.Limits[i]; !l.IsUsageCounter() {
			a.state(l, at).used += units
		}
	}
	cell.Admitted += units
	cell.Last = max(cell.Last, at)
}

func (a *Account) statuses(req *Request, at, refused int64) []Status {
	if len(req.Limits) == 0 {
		return nil
	}
	statuses := make([]Status, len(req.Limits))
	for i := range req.Limits {
		l := &req.Limits[i]
		statuses[i] = l.CountStatus(a.used(l, req.Resource, at), at, refused)
	}
	return statuses
}

// used returns the units that l counts in the window of at.
func (a *Account) used(l *Limit, resource string, at int64) int64 {
	if l.IsUsageCounter() {
		if c := a.cells[cellKey{resource, Minute(at)}]; c != nil {
			return c.Admitted
		}
		return 0
	}
	if s := a.states[stateKey{l.Name, l.WindowStart(at)}]; s != nil {
		return s.used
	}
	return 0
}

func (a *Account) state(l *Limit, at int64) *state {
	key := stateKey{l.Name, l.WindowStart(at)}
	s := a.states[key]
	if s == nil {
		s = &state{end: l.WindowEnd(at)}
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

// Cell returns what was counted of a resource in an epoch minute, nil if nothing.
func (a *Account) Cell(resource string, minute int64) *Cell {
	return a.cells[cellKey{resource, minute}]
}

// Restore sets a cell's units and returns the cell. Limits whose count is not the
// usage counter itself know nothing of it.
func (a *Account) Restore(c Cell) *Cell {
	cell := a.cell(c.Resource, c.Minute)
	cell.Admitted, cell.Rejected, cell.Refunded, cell.Last = c.Admitted, c.Rejected, c.Refunded, c.Last
	return cell
}

// Cells calls yield with every cell until it returns false.
func (a *Account) Cells(yield func(*Cell) bool) {
	for _, c := range a.cells {
		if !yield(c) {
			return
		}
	}
}

// Expire forgets the states of windows that ended before stale and the cells of
// minutes that ended before grace, both unix ms, and reports whether nothing is
// left.
func (a *Account) Expire(stale, grace int64) (empty bool) {
	for key, s := range a.states {
		if s.end < stale {
			delete(a.states, key)
		}
	}
	for key := range a.cells {
		if (key.minute+1)*minuteMs < grace {
			delete(a.cells, key)
		}
	}
	return len(a.states) == 0 && len(a.cells) == 0
}
