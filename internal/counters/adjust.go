package counters

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

//go:embed adjust.lua
var adjustSource string

var adjustScript = newScript(adjustSource)

// The answers of adjust.lua.
const (
	adjustTooLate       = 0
	adjustNoReservation = 3

	kindSettle = 5 // the kinds of adjustments are one more than quota's
)

// Adjust makes an adjustment, atomically. Its error is quota.ErrTooLate when what
// it is about is gone; MayHaveCounted tells whether it may have been made although
// it failed, and then an ID makes it safe to try again.
func (s *Store) Adjust(ctx context.Context, j quota.Adjustment) error {
	if err := j.Check(); err != nil {
		return err
	}
	now, err := s.clock.Now(ctx)
	if err != nil {
		return unavailable(1, err)
	}
	once := int64(0)
	switch {
	case j.Kind == quota.Grant || j.Kind == quota.Reset:
		j.At = now
	case j.At == 0:
		j.At = now
	}
	named := s.ns.appendUsage(nil, j.Token, j.Resource, quota.Minute(j.At))
	if j.ID != "" && (j.Kind == quota.Refund || j.Kind == quota.Charge) {
		once = now + quota.RememberFor.Milliseconds()
		named = s.ns.appendNamed(nil, "once:", j.Token, j.ID)
	}
	return s.adjust(ctx, &j, int64(j.Kind)+1, now, once, named)
}

// Settle replaces a reservation's estimate by the actual cost: in the windows in
// which the reservation was made, and in no later one. Settling again changes
// nothing. The error is quota.ErrNoReservation when there is none (any more).
func (s *Store) Settle(ctx context.Context, t quota.Settlement) error {
	j := quota.Adjustment{Token: t.Token, Resource: t.Resource, Units: t.Actual, Limits: t.Limits}
	if err := j.Check(); err != nil {
		return err
	}
	now, err := s.clock.Now(ctx)
	if err != nil {
		return unavailable(1, err)
	}
	// When it was made chooses the keys, so it must be known before the script.
	if j.At, err = s.reservedAt(ctx, t.Token, t.ID); err != nil {
		return err
	}
	return s.adjust(ctx, &j, kindSettle, now, 0, s.ns.appendNamed(nil, "reserve:", t.Token, t.ID))
}

func (s *Store) reservedAt(ctx context.Context, id token.ID, name string) (int64, error) {
	state, err := s.client.Get(ctx, s.ns.Reservation(id, name)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, quota.ErrNoReservation
	case err != nil:
		return 0, unavailable(1, err)
	}
	at, ok := firstInteger(state)
	if !ok {
		return 0, fmt.Errorf("reservation %q holds no time", name)
	}
	return at, nil
}

func (s *Store) adjust(ctx context.Context, j *quota.Adjustment, kind, now, once int64, named []byte) error {
	c := s.calls.Get().(*call)
	defer s.calls.Put(c)
	minute := quota.Minute(j.At)
	end := (minute + 1) * 60_000
	c.begin()
	c.key(s.ns.appendAdjusted(c.text, s.adjustedFor(j.Token)))
	c.key(s.ns.appendUsage(c.text, j.Token, j.Resource, minute))
	c.key(s.ns.appendBeside(c.text, j.Token, j.Resource, minute, "refunded"))
	c.key(append(c.text, named...))
	for _, n := range []int64{now, end + s.grace, skew.Milliseconds(), j.At, end + skew.Milliseconds(), kind, j.Units, once, int64(len(j.Limits))} {
		c.numbers.add(n)
	}
	for i := range j.Limits {
		c.limit(s.ns, j.Token, j.Resource, "", &j.Limits[i], j.At)
	}
	c.leases = append(c.leases[:0], s.ns.Freed(), string(j.Token)) // ARGV after the numbers
	c.finish()
	reply, err := s.run(ctx, adjustScript, c.ownedCommand)
	switch {
	case err != nil:
		return fmt.Errorf("adjust: %w: %w", ErrUnavailable, err)
	case len(reply) != 1:
		return fmt.Errorf("adjust: the script answered %d numbers", len(reply))
	case reply[0] == adjustTooLate:
		return quota.ErrTooLate
	case reply[0] == adjustNoReservation:
		return quota.ErrNoReservation
	}
	return nil
}

// Release gives back what a request took from limits of concurrency under a
// lease. Releasing again, or a lease that has expired, changes nothing.
func (s *Store) Release(ctx context.Context, id token.ID, lease string, limits []quota.Limit) error {
	for i := range limits {
		if limits[i].Algorithm != quota.Concurrency {
			continue
		}
		err := releaseScript.Run(ctx, s.client, []string{s.ns.Limit(id, limits[i].Name, -1)}, lease).Err()
		if err != nil {
			return fmt.Errorf("release: %w: %w", ErrUnavailable, err)
		}
	}
	return nil
}

//go:embed release.lua
var releaseSource string

var releaseScript = redis.NewScript(releaseSource)

// firstInteger reads the integer that a msgpack text begins with.
func firstInteger(b []byte) (int64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	width := map[byte]int{0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8}[b[0]]
	switch {
	case b[0] < 0x80:
		return int64(b[0]), true
	case width == 0 || len(b) <= width:
		return 0, false
	}
	var n int64
	for _, digit := range b[1 : 1+width] {
		n = n<<8 | int64(digit)
	}
	return n, true
}
