package timeseries_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/timeseries"
)

// span of the series below, minutes.
const span = 10

// writer writes minutes as the tracker's script does.
type writer struct {
	client *redis.Client
	script *redis.Script
}

func (w *writer) put(t *testing.T, resource string, points ...timeseries.Point) {
	t.Helper()
	key := timeseries.Key("api", "t", resource)
	for _, p := range points {
		err := w.script.Run(t.Context(), w.client, []string{key}, span, p.Minute, p.Admitted, p.Rejected, p.Refunded).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
}

// onEach runs a test over each way to keep series.
func onEach(t *testing.T, test func(t *testing.T, b timeseries.Backend, w *writer)) {
	run := func(t *testing.T, client *redis.Client, b timeseries.Backend) {
		t.Helper()
		test(t, b, &writer{client, redis.NewScript(b.Script() + `
			series_put(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))`)})
	}
	t.Run("ring", func(t *testing.T) {
		client := redistest.Start(t).Client()
		run(t, client, choose[*timeseries.Ring](t, client))
	})
	t.Run("RedisTimeSeries", func(t *testing.T) {
		client := modules(t)
		run(t, client, choose[*timeseries.RedisTS](t, client))
	})
}

// modules returns a client of a server with RedisTimeSeries, or of its transcript.
func modules(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: resptest.Start(t), Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func choose[B timeseries.Backend](t *testing.T, client *redis.Client) timeseries.Backend {
	t.Helper()
	b, err := timeseries.Choose(t.Context(), client, "api")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.(B); !ok {
		t.Fatalf("%T was chosen", b)
	}
	return b
}

// Doubled, reordered and grown: the largest figures of each minute in the span.
func TestPointsAreTheLargestFiguresOfEachMinute(t *testing.T) {
	onEach(t, func(t *testing.T, b timeseries.Backend, w *writer) {
		const begin = 29_000_000
		rng := rand.New(rand.NewPCG(1, 2))
		want := map[int64]timeseries.Point{}
		var writes []timeseries.Point
		for range 60 {
			p := timeseries.Point{Minute: begin + rng.Int64N(span), Admitted: rng.Int64N(100), Rejected: rng.Int64N(2), Refunded: rng.Int64N(2)}
			p.Admitted = max(p.Admitted, 1-p.Rejected) // some minutes have rejections only
			old := want[p.Minute]
			want[p.Minute] = timeseries.Point{
				Minute: p.Minute, Admitted: max(old.Admitted, p.Admitted),
				Rejected: max(old.Rejected, p.Rejected), Refunded: max(old.Refunded, p.Refunded),
			}
			writes = append(writes, p)
		}
		w.put(t, "search", writes...)
		w.put(t, "search", writes[:20]...) // old news
		w.put(t, "", timeseries.Point{Minute: begin, Admitted: 1 << 52})
		w.put(t, "", timeseries.Point{Minute: begin + 3, Rejected: 4})

		var all []timeseries.Point
		for _, p := range want {
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b timeseries.Point) int { return cmp.Compare(a.Minute, b.Minute) })
		for _, c := range []struct {
			resource string
			from, to int64
			want     []timeseries.Point
		}{
			{"search", 0, begin + span, all},
			{"search", begin, begin + span, all},
			{"", begin, begin + span, []timeseries.Point{{Minute: begin, Admitted: 1 << 52}, {Minute: begin + 3, Rejected: 4}}},
			{"", begin + 1, begin + 3, nil}, // half-open
			{"", begin + 3, begin + 3, nil},
			{"nothing", 0, begin + span, nil},
		} {
			got, err := b.Points(t.Context(), "t", c.resource, c.from, c.to)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q [%d, %d): %v, %v, want %v", c.resource, c.from, c.to, got, err, c.want)
			}
		}

		// The questions that people have.
		from, to := timeseries.Last(time.Unix((begin+span)*60-1, 0), 3*time.Minute)
		points, err := b.Points(t.Context(), "t", "search", from, to)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for minute := from; minute < to; minute++ {
			sum += want[minute].Admitted
		}
		if got := timeseries.Sum(points).Admitted; got != sum || sum == 0 {
			t.Errorf("in the last three minutes %d, want %d", got, sum)
		}
		steps := timeseries.Range(points, from, to, to-from)
		if len(steps) != 1 || steps[0].Sum.Admitted != sum || steps[0].PerMinute() != float64(sum)/float64(to-from) {
			t.Errorf("%+v", steps)
		}
	})
}

func TestMinutesLeaveWhenTheSpanHasPassedThem(t *testing.T) {
	onEach(t, func(t *testing.T, b timeseries.Backend, w *writer) {
		at := func(minute int64) timeseries.Point { return timeseries.Point{Minute: minute, Admitted: minute} }
		w.put(t, "r", at(1000), at(1001), at(1000+span))
		w.put(t, "r", at(1000)) // too late: the ring has come round
		got, err := b.Points(t.Context(), "t", "r", 0, 2000)
		if want := []timeseries.Point{at(1001), at(1000 + span)}; !slices.Equal(got, want) || err != nil {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	})
}

func TestAKeyOfAnotherTypeIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, b timeseries.Backend, w *writer) {
		for _, key := range []string{"series:{api:t}:r", "series:{api:t}:r:admitted", "series:{api:t}:r:admitted:day"} {
			if err := w.client.Set(t.Context(), key, "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		want := []timeseries.Point{{Minute: 5, Admitted: 7}}
		w.put(t, "r", want...)
		if got, err := b.Points(t.Context(), "t", "r", 0, 10); !slices.Equal(got, want) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// A minute that grows after its hour has been closed changes the hour and the day,
// and writing it again does not.
func TestHoursAndDaysFollowLateAndRepeatedMinutes(t *testing.T) {
	client := modules(t)
	b := timeseries.NewRedisTS(client, "api")
	w := &writer{client, redis.NewScript(b.Script() + `
		series_put(KEYS[1], 3000, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))`)}
	const day = 29_000_160 // begins a day
	for _, p := range []timeseries.Point{
		{Minute: day, Admitted: 5},
		{Minute: day + 1, Admitted: 1, Rejected: 2},
		{Minute: day + 60, Admitted: 10},
		{Minute: day + 60, Admitted: 11},
		{Minute: day, Admitted: 7}, // late: its hour is closed
		{Minute: day, Admitted: 6}, // old news
		{Minute: day + 1440, Admitted: 100},
		{Minute: day + 61, Admitted: 20, Refunded: 3}, // of yesterday
		{Minute: day + 1440, Admitted: 100},
	} {
		w.put(t, "search", p)
	}
	for _, c := range []struct {
		every timeseries.Every
		want  []timeseries.Point
	}{
		{timeseries.Hour, []timeseries.Point{{Minute: day, Admitted: 8, Rejected: 2}, {Minute: day + 60, Admitted: 31, Refunded: 3}, {Minute: day + 1440, Admitted: 100}}},
		{timeseries.Day, []timeseries.Point{{Minute: day, Admitted: 39, Rejected: 2, Refunded: 3}, {Minute: day + 1440, Admitted: 100}}},
	} {
		got, err := b.Compacted(t.Context(), c.every, "t", "search", day, day+2*1440)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.every, got, err, c.want)
		}
	}
	rows, err := client.Do(context.Background(), "TS.MRANGE", "-", "+", "FILTER", "token=t", "resource=search", "kind=admitted", "step=day").Slice()
	if err != nil || len(rows) != 1 {
		t.Errorf("by labels: %v, %v", rows, err)
	}
	ttl, err := client.TTL(context.Background(), "series:{api:t}:search:admitted:day").Result()
	if err != nil || ttl <= 399*24*time.Hour {
		t.Errorf("expires in %s, %v", ttl, err)
	}
}
