package quota

import "github.com/tallygate/tallygate/internal/token"

// Batch groups the equal requests of a batch: one entry with a count stands for
// all of them. The zero value is ready; it may be used again and again, but not
// concurrently.
type Batch struct {
	Entries []Entry
	of      []int32 // entry of each request
	index   map[identity]int32
}

// Entry stands for Count equal requests.
type Entry struct {
	*Request
	Count int64
}

// identity is what makes two requests equal. Limits are told apart by their
// array: requests made from one policy share it. Equal requests that do not are
// merely decided one after the other.
type identity struct {
	token     token.ID
	resource  string
	cost      int64
	limits    *Limit
	n         int
	blocked   bool
	overdraft bool
}

// Group replaces the batch's entries by those of requests, in the order of each
// entry's first request. The entries point into requests.
func (b *Batch) Group(requests []Request) {
	b.Entries, b.of = b.Entries[:0], b.of[:0]
	if b.index == nil {
		b.index = make(map[identity]int32)
	}
	clear(b.index)
	for i := range requests {
		r := &requests[i]
		id := identity{r.Token, r.Resource, r.Cost, nil, len(r.Limits), r.Blocked, r.Overdraft}
		if id.n > 0 {
			id.limits = &r.Limits[0]
		}
		at, known := b.index[id]
		if !known || r.Lease != "" || r.Reserve != "" { // what the second finds depends on the first
			at = int32(len(b.Entries))
			b.index[id] = at
			b.Entries = append(b.Entries, Entry{Request: r})
		}
		b.Entries[at].Count++
		b.of = append(b.of, at)
	}
}

// Answer sets result i to what its entry got: the first of them the better answer.
func (b *Batch) Answer(results []Result, answers []EntryAnswer) {
	for i, at := range b.of {
		a := &answers[at]
		switch {
		case a.Err != nil:
			results[i] = Result{Err: a.Err}
			continue
		case a.Clear > 0:
			results[i].Decision = a.Yes
		case a.Fit > 0:
			results[i].Decision = a.Over
		default:
			results[i].Decision = a.No
		}
		a.Clear--
		a.Fit--
	}
}

// EntryAnswer is what a store decided about an entry. A decision that nobody gets
// is zero.
type EntryAnswer struct {
	Fit   int64    // how many of the entry's requests are allowed
	Clear int64    // for how many of those no shadow limit had an objection
	Yes   Decision // for the clear ones
	Over  Decision // for those that are allowed although a shadow limit objects
	No    Decision // for the rest
	Err   error    // why there is no decision
}
