package commands

import (
	"reflect"
	"testing"
)

// A name is taken as it is: that of a group may have a comma in it.
func TestDoctorParsing(t *testing.T) {
	got, err := parse(t, &Deps{}, newDoctorCmd, barWords("--group|a,b|--group|c|--topic|orders|--transactional-id|x,y"))
	want := doctorOptions{Groups: []string{"a,b", "c"}, Topics: []string{"orders"}, TransactionalIDs: []string{"x,y"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("parsed %+v, %v; want %+v", got, err, want)
	}
}
