// Package memory is the in-process store: the decisions, the changes and the
// ledger that otherwise live in Redis, in sharded maps.
//
//	shard   a share of the tokens under one lock
//	account a token's counts, see quota.Account
//	cell    a token's units of one resource and minute: the usage counter
//
// It decides exactly as Redis does. Nothing runs in the background: whoever adds
// an account or a cell also forgets a few that have expired.
package memory

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/token"
)

// Options of a Store. The zero value is valid.
type Options struct {
	// Grace overrides the default of 10 minutes: how long a cell is kept after
	// its minute, for the ledger to account for it.
	Grace time.Duration
	// Now overrides the default, the system's clock. It returns unix ms.
	Now func() int64
}

// Store decides requests and keeps their account in process. It is safe for
// concurrent use.
type Store struct {
	now     func() int64
	grace   int64 // ms
	seed    maphash.Seed
	watched atomic.Bool   // somebody wants to know about changes
	changes chan struct{} // holds a value while a shard has dirty cells
	shards  [shards]shard
}

// shards is a power of two well above the number of cores.
const shards = 256

type shard struct {
	mu       sync.Mutex
	accounts map[token.ID]*account
	dirty    []dirtyCell
	_        [24]byte // neighbours share no cache line
}

type account struct {
	quota.Account
	meta   metadata.Meta
	series map[string]map[int64]timeseries.Point // resource → minute mod span → point
	tidied int64                                 // epoch minute in which it last forgot what had expired
}

// skew is how long a window's count is kept after its end, in ms, for a clock
// that steps back.
const skew = 5_000

// expire forgets what has expired, and reports whether nothing is left.
func (a *account) expire(now, grace int64) (empty bool) {
	return a.Expire(now-skew, now-grace) && a.meta == metadata.Meta{}
}

// expire looks at a few accounts, the next ones in the map's random order, and
// drops those with nothing left. It runs once for each account that is added, so
// idle ones go faster than new ones come.
func (sh *shard) expire(now, grace int64) {
	looked := 0
	for id, a := range sh.accounts {
		if a.expire(now, grace) {
			delete(sh.accounts, id)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

type dirtyCell struct {
	id   token.ID
	cell *quota.Cell
}

// New returns an empty store.
func New(o Options) *Store {
	s := &Store{
		now:     o.Now,
		grace:   cmp.Or(o.Grace, 10*time.Minute).Milliseconds(),
		seed:    maphash.MakeSeed(),
		changes: make(chan struct{}, 1),
	}
	if s.now == nil {
		s.now = func() int64 { return time.Now().UnixMilli() }
	}
	for i := range s.shards {
		s.shards[i].accounts = make(map[token.ID]*account)
	}
	return s
}

func (s *Store) shard(id token.ID) *shard {
	return &s.shards[maphash.String(s.seed, string(id))%shards]
}

// Decide decides a request. It never blocks on anything but the token's shard.
func (s *Store) Decide(_ context.Context, request quota.Request) quota.Result {
	answer := s.decide(&request, 1)
	switch {
	case answer.Clear > 0:
		return quota.Result{Decision: answer.Yes}
	case answer.Fit > 0:
		return quota.Result{Decision: answer.Over}
	}
	return quota.Result{Decision: answer.No, Err: answer.Err}
}

// DecideAll decides requests; results[i] answers requests[i]. Equal requests are
// decided as one, see quota.Batch.
func (s *Store) DecideAll(_ context.Context, requests []quota.Request) []quota.Result {
	var batch quota.Batch
	batch.Group(requests)
	answers := make([]quota.EntryAnswer, len(batch.Entries))
	for i := range batch.Entries {
		answers[i] = s.decide(batch.Entries[i].Request, batch.Entries[i].Count)
	}
	results := make([]quota.Result, len(requests))
	batch.Answer(results, answers)
	return results
}

func (s *Store) decide(request *quota.Request, count int64) quota.EntryAnswer {
	if err := request.Check(); err != nil {
		return quota.EntryAnswer{Err: err}
	}
	sh := s.shard(request.Token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	a, known := sh.accounts[request.Token]
	if !known {
		a = new(account)
	}
	answer, cell := a.Decide(request, count, now)
	if !known && cell != nil {
		sh.expire(now, s.grace)
		sh.accounts[request.Token] = a
	}
	if minute := quota.Minute(now); minute > a.tidied {
		a.tidied = minute
		a.expire(now, s.grace)
	}
	s.changed(sh, request.Token, cell)
	return answer
}

// changed marks a cell, which may be nil, for the watcher. The shard is locked.
func (s *Store) changed(sh *shard, id token.ID, cell *quota.Cell) {
	if cell == nil || cell.Dirty || !s.watched.Load() {
		return
	}
	cell.Dirty = true
	sh.dirty = append(sh.dirty, dirtyCell{id, cell})
	select {
	case s.changes <- struct{}{}:
	default:
	}
}
