package ctp

import "testing"

func TestSourcePartitionEmpty(t *testing.T) {
	tests := map[string]struct {
		p    sourcePartition
		idle bool
		want bool
	}{
		"no lag":                               {sourcePartition{start: 7, lag: 0, first: 0, end: 9}, false, true},
		"lag":                                  {sourcePartition{start: 7, lag: 2, first: 0, end: 9}, true, false},
		"lag of what was deleted":              {sourcePartition{start: 7, lag: 2, first: 9, end: 9}, false, true},
		"lag of what was deleted in part":      {sourcePartition{start: 3, lag: 6, first: 7, end: 9}, true, false},
		"no lag reported, start at the end":    {sourcePartition{start: 9, lag: -1, first: 0, end: 9}, false, true},
		"no lag reported, start before it":     {sourcePartition{start: 8, lag: -1, first: 0, end: 9}, true, false},
		"no start yet, log never written":      {sourcePartition{start: -1, lag: -1}, false, true},
		"no start yet, log deleted to its end": {sourcePartition{start: -1, lag: -1, first: 9, end: 9}, false, true},
		"no start yet, records":                {sourcePartition{start: -1, lag: -1, first: 0, end: 9}, false, false},
		"no start yet, records, member idle":   {sourcePartition{start: -1, lag: -1, first: 0, end: 9}, true, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.p.empty(tt.idle); got != tt.want {
				t.Errorf("%+v.empty(%v) = %v, want %v", tt.p, tt.idle, got, tt.want)
			}
		})
	}
}

func TestSourcePartitionLeft(t *testing.T) {
	for want, ps := range map[int64][]sourcePartition{
		0: {
			{start: 7, lag: 0}, {start: 7, lag: 2, first: 9, end: 9}, {start: -1, lag: -1, first: 9, end: 9},
		},
		2:  {{start: 7, lag: 2, first: 0, end: 9}, {start: 3, lag: 6, first: 7, end: 9}},
		-1: {{start: -1, lag: -1, first: 0, end: 9}, {start: 3, lag: -1, first: 0, end: 9}},
	} {
		for _, p := range ps {
			if got := p.left(); got != want {
				t.Errorf("%+v.left() = %d, want %d", p, got, want)
			}
		}
	}
}
