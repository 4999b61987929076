package timeseries_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/timeseries"
)

func ExampleRange() {
	points := []timeseries.Point{{Minute: 10, Admitted: 5}, {Minute: 11, Admitted: 1, Rejected: 2}, {Minute: 14, Admitted: 4}}
	for _, s := range timeseries.Range(points, 10, 15, 2) {
		fmt.Println("minute", s.Sum.Minute, "sum", s.Sum.Admitted, "max", s.Max.Admitted, "per minute", s.PerMinute())
	}
	// Output:
	// minute 10 sum 6 max 5 per minute 3
	// minute 12 sum 0 max 0 per minute 0
	// minute 14 sum 4 max 4 per minute 4
}

func ExampleLast() {
	from, to := timeseries.Last(time.Unix(60*100+10, 0), 5*time.Minute)
	fmt.Println(from, to)
	// Output: 95 101
}

func TestRangeOfNothing(t *testing.T) {
	if steps := timeseries.Range(nil, 5, 5, 1); steps != nil {
		t.Errorf("%v", steps)
	}
	if steps := timeseries.Range(nil, 5, 7, 0); len(steps) != 2 {
		t.Errorf("%v", steps)
	}
}

// put runs series_put as the tracker's script does.
type ring struct {
	client *redis.Client
	script *redis.Script
	span   int64
}

func newRing(t *testing.T, span int64) *ring {
	script := redis.NewScript(timeseries.Lua + `
		series_put(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))`)
	return &ring{redistest.Start(t).Client(), script, span}
}

func (r *ring) put(t interface{ Fatal(...any) }, key string, p timeseries.Point) {
	err := r.script.Run(context.Background(), r.client, []string{key}, r.span, p.Minute, p.Admitted, p.Rejected, p.Refunded).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
}

// Writes in any order, doubled, late and with gaps of any length: the ring shows
// the largest figures of every minute that no later one has taken the place of.
func TestRingAgreesWithAPlainMap(t *testing.T) {
	r := newRing(t, 10)
	reader := timeseries.NewRing(r.client, "api")
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		resource := fmt.Sprint("r", n)
		model := map[int64]timeseries.Point{} // by bucket
		base := int64(29_000_000)
		for range rapid.IntRange(1, 20).Draw(t, "writes") {
			base += rapid.SampledFrom([]int64{0, 0, 1, 2, 9, 10, 25}).Draw(t, "gap")
			units := rapid.Int64Range(0, 50)
			p := timeseries.Point{
				Minute:   base - rapid.Int64Range(0, 12).Draw(t, "late"),
				Admitted: units.Draw(t, "admitted"), Rejected: units.Draw(t, "rejected"), Refunded: units.Draw(t, "refunded"),
			}
			r.put(t, timeseries.Key("api", "t", resource), p)
			old, ok := model[p.Minute%10]
			switch {
			case !ok || old.Minute < p.Minute:
				model[p.Minute%10] = p
			case old.Minute == p.Minute:
				old.Admitted, old.Rejected, old.Refunded = max(old.Admitted, p.Admitted), max(old.Rejected, p.Rejected), max(old.Refunded, p.Refunded)
				model[p.Minute%10] = old
			}
		}
		from := base - rapid.Int64Range(0, 12).Draw(t, "from")
		var want []timeseries.Point
		for minute := from; minute <= base; minute++ {
			if p, ok := model[minute%10]; ok && p.Minute == minute {
				want = append(want, p)
			}
		}
		got, err := reader.Points(context.Background(), "t", resource, from, base+1)
		if err != nil {
			t.Fatal(err)
		}
		if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

// A token that is busy for ever costs what the package says; an idle one nothing.
func TestSeriesIsSmallAndExpires(t *testing.T) {
	r := newRing(t, timeseries.DefaultSpan)
	ctx := context.Background()
	key := timeseries.Key("api", "t", "search")
	for m := range int64(3 * timeseries.DefaultSpan) {
		r.put(t, key, timeseries.Point{Minute: 29_000_000 + m, Admitted: 1 << 40, Rejected: 1 << 40, Refunded: 1 << 40})
	}
	if encoding := r.client.ObjectEncoding(ctx, key).Val(); encoding != "listpack" && encoding != "ziplist" {
		t.Errorf("encoding %s", encoding)
	}
	if n := r.client.HLen(ctx, key).Val(); n != timeseries.DefaultSpan {
		t.Errorf("%d buckets", n)
	}
	if bytes := r.client.MemoryUsage(ctx, key, 0).Val(); bytes > 8<<10 {
		t.Errorf("%d bytes", bytes)
	}
	ttl := r.client.TTL(ctx, key).Val()
	if ttl <= 0 || ttl > timeseries.DefaultSpan*time.Minute {
		t.Errorf("expires in %s", ttl)
	}
}

func TestMalformedBucketIsNamed(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	for _, bucket := range []string{"", "1:2:3", "1:2:3:4:5", "a:b:c:d"} {
		client.HSet(ctx, timeseries.Key("api", "t", ""), "0", bucket)
		if _, err := timeseries.NewRing(client, "api").Points(ctx, "t", "", 0, 10); !errors.Is(err, timeseries.ErrMalformed) {
			t.Errorf("%q: %v", bucket, err)
		}
	}
}
