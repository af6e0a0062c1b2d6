package sandbox

import (
	"math"
	"testing"
	"time"
)

func attributesOf(list []attribute) map[string]float64 {
	m := make(map[string]float64)
	for _, a := range list {
		m[a.name] = a.value
	}
	return m
}

func near(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*max(1, math.Abs(b))
}

// 300 events at once: after the tick that first sees them the averages are 60 a
// second, and decay by their own speeds from then on.
func TestMeter(t *testing.T) {
	start := time.Unix(1000, 0)
	m := newMeter(start)
	for _, c := range []struct {
		after time.Duration
		mark  int64
		want  map[string]float64
	}{
		{0, 300, map[string]float64{"Count": 300, "MeanRate": 0, "OneMinuteRate": 0}},
		{4 * time.Second, 0, map[string]float64{"Count": 300, "MeanRate": 75, "OneMinuteRate": 0}},
		{5 * time.Second, 0, map[string]float64{"MeanRate": 60, "OneMinuteRate": 60, "FiveMinuteRate": 60, "FifteenMinuteRate": 60}},
		{65 * time.Second, 0, map[string]float64{
			"OneMinuteRate": 60 * math.Exp(-1), "FiveMinuteRate": 60 * math.Exp(-0.2), "FifteenMinuteRate": 60 * math.Exp(-1.0/15),
		}},
		{67 * time.Second, 50, map[string]float64{"Count": 350, "OneMinuteRate": 60 * math.Exp(-1)}},
		{70 * time.Second, 0, map[string]float64{"OneMinuteRate": 60*math.Exp(-13.0/12) + 10*(1-math.Exp(-1.0/12))}},
	} {
		now := start.Add(c.after)
		if c.mark > 0 {
			m.mark(now, c.mark)
		}
		got := attributesOf(m.attributes(now))
		for name, want := range c.want {
			if !near(got[name], want) {
				t.Errorf("after %v: %s = %v, want %v", c.after, name, got[name], want)
			}
		}
	}
	quiet := attributesOf(newMeter(start).attributes(start))
	if len(quiet) != 5 || quiet["Count"] != 0 || quiet["MeanRate"] != 0 {
		t.Errorf("a new meter has %v", quiet)
	}
}

func TestHistogram(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   map[string]float64
	}{
		{"empty", nil, map[string]float64{"Count": 0, "Min": 0, "Max": 0, "Mean": 0, "StdDev": 0, "50thPercentile": 0, "999thPercentile": 0}},
		// What a broker of Kafka 4.4 shows of these two, seen on one.
		{"two", []float64{12, 19}, map[string]float64{
			"Count": 2, "Min": 12, "Max": 19, "Mean": 15.5, "StdDev": 4.949747468305833,
			"50thPercentile": 15.5, "75thPercentile": 19, "95thPercentile": 19, "999thPercentile": 19,
		}},
		{"hundred", upTo(100), map[string]float64{
			"Count": 100, "Min": 1, "Max": 100, "Mean": 50.5, "50thPercentile": 50.5, "75thPercentile": 75.75, "99thPercentile": 99.99, "999thPercentile": 100,
		}},
		{"more than are kept", append(upTo(histogramSize), 7), map[string]float64{"Count": histogramSize + 1, "Min": 1, "Max": histogramSize}},
		{"negative first", []float64{-3, -1}, map[string]float64{"Min": -3, "Max": -1}},
	} {
		var h histogram
		for _, v := range c.values {
			h.update(v)
		}
		got := attributesOf(h.attributes())
		for name, want := range c.want {
			if !near(got[name], want) {
				t.Errorf("%s: %s = %v, want %v", c.name, name, got[name], want)
			}
		}
		if len(h.last) > histogramSize {
			t.Errorf("%s: %d values are kept", c.name, len(h.last))
		}
	}
	var h histogram
	for range histogramSize {
		h.update(1)
	}
	for range histogramSize {
		h.update(5)
	}
	if got := attributesOf(h.attributes()); got["50thPercentile"] != 5 || got["Min"] != 1 {
		t.Errorf("old values are still in the percentiles: %v", got)
	}
}

func upTo(n int) []float64 {
	var out []float64
	for i := range n {
		out = append(out, float64(i+1))
	}
	return out
}

// Kafka's own statistics forget what is older than two windows of 30 s.
func TestWindowedStat(t *testing.T) {
	start := time.Unix(1000, 0)
	var s windowedStat
	if !math.IsNaN(s.average(start)) || !math.IsNaN(s.highest(start)) || s.rate(start) != 0 {
		t.Error("a statistic of nothing is a number")
	}
	s.record(start, 4)
	s.record(start.Add(10*time.Second), 8)
	s.record(start.Add(31*time.Second), 3) // in the next window
	for _, c := range []struct {
		after              time.Duration
		average, max, rate float64
	}{
		{31 * time.Second, 5, 8, 3.0 / 31},
		{59 * time.Second, 5, 8, 3.0 / 59},
		{60 * time.Second, 3, 3, 1.0 / 30},
		{91 * time.Second, math.NaN(), math.NaN(), 0},
	} {
		now := start.Add(c.after)
		if a, m, r := s.average(now), s.highest(now), s.rate(now); !near(a, c.average) || !near(m, c.max) || !near(r, c.rate) {
			t.Errorf("after %v: average %v, max %v, rate %v, want %v, %v, %v", c.after, a, m, r, c.average, c.max, c.rate)
		}
	}
	if s.total != 3 {
		t.Errorf("total %d, want 3", s.total)
	}
}
